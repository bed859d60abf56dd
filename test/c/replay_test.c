#include "model_support.h"

static struct tape tape;
static struct log log_;

static int open_tape(void **state)
{
    (void)state;
    tape_open(&tape);
    return 0;
}

static int close_tape(void **state)
{
    (void)state;
    rat_replay_free(log_.replay);
    log_.replay = NULL;
    tape_close(&tape);
    return 0;
}

static void check_clean(void)
{
    assert_int_equal(findings(&log_), 0);
    assert_int_equal(only_session(&log_)->repairs, 0);
    assert_true(rat_account_balanced(lane_account(&log_, 1)));
}

/* A call at 10, and its return at 30 in the next segment. How long the first one is. */
static size_t call_over_two_segments(void)
{
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_flip(&tape);
    size_t first = tape.out.length;
    tape_next_segment(&tape);
    tape_snapshot(&tape, 20, RUBY(a));
    tape_return(&tape, 30);
    tape_flip(&tape);
    return first;
}

/* ---------------------------------------------------------------- stacks */

static void self_is_total_less_the_totals_called(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_call(&tape, 20, b);
    tape_return(&tape, 50);
    tape_call(&tape, 55, b);
    tape_return(&tape, 60);
    tape_return(&tape, 100);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 10\n+b 20\n-b 30/30\n+b 55\n-b 5/5\n-a 90/55\n");
    check_clean();
}

static void frames_stay_open_across_chunks_and_segments(void **state)
{
    (void)state;
    call_over_two_segments();
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 10\n-a 20/20\n");
    check_clean();
}

static void an_unwind_ends_as_many_frames_as_it_says(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 1, a);
    tape_call(&tape, 2, b);
    tape_call(&tape, 3, b);
    tape_plain(&tape, 5, RAT_EVENT_UNWIND, 2);
    tape_return(&tape, 6);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 1\n+b 2\n+b 3\n-b 2/2 unwind\n-b 3/1 unwind\n-a 5/2\n");
    assert_int_equal(only_session(&log_)->unwound, 2);
    check_clean();
}

static void an_unmatched_return_pops_nothing(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 1, a);
    tape_plain(&tape, 2, RAT_EVENT_UNMATCHED, 0);
    tape_return(&tape, 3);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 1\n-a 2/2\n");
    assert_int_equal(only_session(&log_)->unmatched, 1);
    check_clean();
}

static void contexts_have_stacks_of_their_own(void **state)
{
    (void)state;
    uint32_t fiber = add_context(&tape.session, RAT_CONTEXT_FIBER, CTX, NULL);
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_snapshot_of(&tape, 20, fiber, RAT_SNAPSHOT_SLOT, ENTRIES());
    tape_call(&tape, 20, b);
    tape_plain(&tape, 30, RAT_EVENT_SWITCH, CTX);
    tape_return(&tape, 40);
    tape_plain(&tape, 50, RAT_EVENT_SWITCH, fiber);
    tape_return(&tape, 60);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 10\n+b 20\n-a 30/30\n-b 40/40\n");
    check_clean();
}

static void base_frames_are_open_and_not_called(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 5, BASE(a));
    tape_call(&tape, 10, b);
    tape_return(&tape, 15);
    tape_return(&tape, 20);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "~a(base) 5\n+b 10\n-b 5/5\n-a(base) 15/10\n");
    check_clean();
}

static void an_end_closes_all_frames_with_its_reason(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 1, a);
    tape_call(&tape, 2, a);
    tape_end(&tape, 9, CTX, RAT_END_STOP);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 1\n+a 2\n-a 7/7 stop\n-a 8/1 stop\n");
    check_clean();
}

static void frames_open_at_the_end_of_the_data_end_at_the_last_time_known(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_call(&tape, 20, b);
    tape_return(&tape, 30);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 10\n+b 20\n-b 10/10\n-a 20/10 open\n");
}

static void a_context_id_given_to_another_fiber_starts_anew(void **state)
{
    (void)state;
    uint32_t fiber = add_context(&tape.session, RAT_CONTEXT_FIBER, CTX, NULL);
    uint32_t a = frame(&tape, "a");
    tape_snapshot_of(&tape, 0, fiber, RAT_SNAPSHOT_SLOT, ENTRIES());
    tape_call(&tape, 1, a);
    tape_end(&tape, 5, fiber, RAT_END_CONTEXT_DIED);
    tape_flip(&tape);
    rat_dict_replace_context(tape.session.dict, fiber,
                             &(struct rat_context_entry){
                                 .kind = RAT_CONTEXT_FIBER, .parent = CTX, .lane = 1, .seen_ticks = 6});
    tape_next_segment(&tape);
    tape_snapshot_of(&tape, 6, fiber, RAT_SNAPSHOT_SLOT, ENTRIES(BASE(a)));
    tape_return(&tape, 8);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 1\n-a 4/4 died\n~a(base) 6\n-a(base) 2/2\n");
    check_clean();
}

/* ---------------------------------------------------------------- loss */

static void a_missing_chunk_is_lost_and_its_frames_are_repaired(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b"), c = frame(&tape, "c");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_call(&tape, 20, b);
    tape_flip(&tape);
    tape_snapshot(&tape, 30, RUBY(a), RUBY(b));
    tape_return(&tape, 40);
    tape_call(&tape, 50, c);
    tape_lose(&tape);
    tape_snapshot(&tape, 60, RUBY(a), RUBY(c));
    tape_return(&tape, 70);
    tape_return(&tape, 80);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    /* b was open at 20, when we heard of it last; c was open at 60, when we heard of it first */
    assert_log(&log_, "+a 10\n+b 20\n-b 0/0 reader\n~c 60\n-c 10/10\n-a 70/60\n");
    const struct rat_lane_account *lane = lane_account(&log_, 1);
    assert_int_equal(lane->lost_chunks, 1);
    assert_int_equal(rat_account_lost(lane), 3);
    assert_int_equal(lane->lost[RAT_LOST_UNKNOWN], 3);
    assert_int_equal(rat_account_emitted(lane), 9);
    assert_int_equal(lane->decoded, 6);
    assert_true(rat_account_balanced(lane));
    assert_int_equal(only_session(&log_)->repairs, 1);
    assert_int_equal(findings(&log_), 0);
}

static void a_labelled_loss_has_its_cause(void **state)
{
    (void)state;
    tape_snapshot(&tape, 0);
    tape_flip(&tape);
    tape_snapshot(&tape, 10);
    tape_lose(&tape);
    tape_snapshot(&tape, 20);
    struct rat_chunk_info info = tape_info(&tape);
    struct rat_lost_label label = {.cause = RAT_LOST_WRITE_FAILED, .first_seq = 2, .last_seq = 2, .count = 1};
    info.lost = &label;
    info.lost_count = 1;
    tape_flip_as(&tape, info, true);
    replay_tape(&log_, &tape);
    assert_int_equal(lane_account(&log_, 1)->lost[RAT_LOST_WRITE_FAILED], 1);
    assert_int_equal(lane_account(&log_, 1)->lost[RAT_LOST_UNKNOWN], 0);
    check_clean();
}

static void drops_are_counted_and_excuse_a_difference(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape.drops = 7;
    tape_flip(&tape);
    tape_snapshot(&tape, 60, RUBY(b));
    tape_return(&tape, 70);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 10\n-a 0/0 reader\n~b 60\n-b 10/10\n");
    assert_int_equal(lane_account(&log_, 1)->dropped[RAT_DROP_SLOT_FULL], 7);
    assert_int_equal(rat_account_emitted(lane_account(&log_, 1)), 11);
    assert_true(rat_account_balanced(lane_account(&log_, 1)));
    assert_int_equal(findings(&log_), 0);
}

static void a_difference_without_a_loss_is_a_contradiction(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_flip(&tape);
    tape_snapshot(&tape, 60, RUBY(b));
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_int_equal(only_session(&log_)->account.findings[RAT_FINDING_SNAPSHOT].count, 1);
    assert_int_equal(only_session(&log_)->account.findings[RAT_FINDING_SNAPSHOT].sequence, 2);
}

static void a_repair_by_the_recorder_is_no_contradiction(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b"), c = frame(&tape, "c");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_call(&tape, 20, b);
    tape_call(&tape, 30, c);
    tape_snapshot_of(&tape, 40, CTX, RAT_SNAPSHOT_REPAIR, ENTRIES(RUBY(a), RUBY(c)));
    tape_return(&tape, 50);
    tape_return(&tape, 60);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 10\n+b 20\n+c 30\n-c 10/10 reader\n-b 20/10 reader\n~c 40\n-c 10/10\n-a 50/20\n");
    assert_int_equal(findings(&log_), 0);
    assert_int_equal(only_session(&log_)->repairs, 2);
}

static void a_return_on_an_empty_stack_is_a_contradiction(void **state)
{
    (void)state;
    tape_snapshot(&tape, 0);
    tape_return(&tape, 5);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "");
    assert_int_equal(only_session(&log_)->account.findings[RAT_FINDING_EMPTY_RETURN].count, 1);
}

static void a_return_of_another_kind_is_a_contradiction(void **state)
{
    (void)state;
    tape_snapshot(&tape, 0);
    tape_call(&tape, 1, frame(&tape, "a"));
    tape_plain(&tape, 5, RAT_EVENT_C_RETURN, 0);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_int_equal(only_session(&log_)->account.findings[RAT_FINDING_RETURN_KIND].count, 1);
}

static void an_event_before_its_context_is_a_contradiction(void **state)
{
    (void)state;
    tape_call(&tape, 1, frame(&tape, "a"));
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "");
    assert_int_equal(only_session(&log_)->account.findings[RAT_FINDING_NO_CONTEXT].count, 1);
}

/* ---------------------------------------------------------------- files */

static void chunks_met_twice_count_once(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_return(&tape, 20);
    tape_flip(&tape);
    struct rat_source twice[] = {{.bytes = tape.out.bytes, .length = tape.out.length},
                                 {.bytes = tape.out.bytes, .length = tape.out.length}};
    replay_sources(&log_, twice, 2);
    assert_log(&log_, "+a 10\n-a 10/10\n");
    assert_int_equal(lane_account(&log_, 1)->duplicates, 1);
    check_clean();
}

static void segments_are_read_in_their_order_whatever_the_order_given(void **state)
{
    (void)state;
    size_t first = call_over_two_segments();
    struct rat_source swapped[] = {{.bytes = tape.out.bytes + first, .length = tape.out.length - first},
                                   {.bytes = tape.out.bytes, .length = first}};
    replay_sources(&log_, swapped, 2);
    assert_log(&log_, "+a 10\n-a 20/20\n");
    check_clean();
}

static void a_later_segment_alone_says_what_lies_before_it(void **state)
{
    (void)state;
    size_t first = call_over_two_segments();
    replay_sources(&log_, &(struct rat_source){.bytes = tape.out.bytes + first, .length = tape.out.length - first}, 1);
    assert_log(&log_, "~a 20\n-a 10/10\n");
    assert_int_equal(lane_account(&log_, 1)->before, 2);
    check_clean();
}

/* Flip a bit at `back` bytes before the end of the last chunk. */
static void damage_last_chunk(size_t back)
{
    tape.out.bytes[tape.out.length - back] ^= 0x10;
}

static void a_damaged_body_is_lost_to_the_last_event(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_flip(&tape);
    tape_snapshot(&tape, 20, RUBY(a));
    tape_return(&tape, 25);
    tape_flip(&tape);
    damage_last_chunk(3);
    tape_snapshot(&tape, 30);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 10\n-a 0/0 reader\n");
    assert_int_equal(lane_account(&log_, 1)->damaged, 2);
    assert_int_equal(lane_account(&log_, 1)->damaged_chunks, 1);
    assert_true(rat_account_balanced(lane_account(&log_, 1)));
    assert_int_equal(findings(&log_), 0);
}

static void names_of_a_damaged_chunk_come_from_the_closing_one(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_session_chunk(&tape, RAT_REASON_OPENING);
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_flip(&tape);
    damage_last_chunk(3);
    tape_snapshot(&tape, 20, RUBY(a));
    tape_return(&tape, 25);
    tape_flip(&tape);
    tape_session_chunk(&tape, RAT_REASON_CLOSING);
    replay_tape(&log_, &tape);
    assert_log(&log_, "~a 20\n-a 5/5\n");
    assert_int_equal(only_session(&log_)->names_lost, 0);
    assert_true(only_session(&log_)->account.stopped);
}

static void chunks_lost_at_the_end_are_known_by_the_closing_one(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_session_chunk(&tape, RAT_REASON_OPENING);
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_flip(&tape);
    tape_return(&tape, 20);
    tape_lose(&tape);
    tape_snapshot(&tape, 30);
    tape_call(&tape, 40, a);
    tape.drops = 5;
    tape_lose(&tape);
    tape_marked_closing(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 10\n-a 0/0 open\n");
    const struct rat_lane_account *lane = lane_account(&log_, 1);
    assert_int_equal(lane->lost_chunks, 2);
    assert_int_equal(lane->lost[RAT_LOST_UNKNOWN], 3);
    assert_int_equal(rat_account_dropped(lane), 5);
    assert_int_equal(rat_account_emitted(lane), 2 + 3 + 5);
    assert_true(rat_account_balanced(lane));
    assert_int_equal(findings(&log_), 0);
}

static void a_lane_all_of_whose_chunks_are_lost_is_known_by_the_closing_one(void **state)
{
    (void)state;
    tape_session_chunk(&tape, RAT_REASON_OPENING);
    tape_snapshot(&tape, 0);
    tape_lose(&tape);
    tape_marked_closing(&tape);
    replay_tape(&log_, &tape);
    const struct rat_lane_account *lane = lane_account(&log_, 1);
    assert_int_equal(rat_account_lost(lane), 1);
    assert_int_equal(rat_account_emitted(lane), 1);
    assert_true(rat_account_balanced(lane));
}

static void a_lane_that_was_idle_in_the_only_segment_given_has_lost_nothing(void **state)
{
    (void)state;
    tape_snapshot(&tape, 0);
    tape_lose(&tape);
    tape_next_segment(&tape);
    tape_session_chunk(&tape, RAT_REASON_OPENING);
    tape_marked_closing(&tape);
    replay_tape(&log_, &tape);
    assert_int_equal(only_session(&log_)->account.lane_count, 1); /* lane 0 */
}

static void a_closing_chunk_that_contradicts_what_was_read_is_found(void **state)
{
    (void)state;
    tape_snapshot(&tape, 0);
    tape_flip(&tape);
    struct rat_lane_mark mark = {.lane = tape.lane, .sequence = tape.sequence - 1, .closed = {.stored = 7}};
    tape_session_chunk_with(&tape, RAT_REASON_CLOSING, &mark, 1);
    replay_tape(&log_, &tape);
    assert_int_equal(only_session(&log_)->account.findings[RAT_FINDING_TOTALS].count, 1);
}

static void names_in_no_readable_chunk_are_said_to_be_lost(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_flip(&tape);
    damage_last_chunk(3);
    tape_snapshot(&tape, 20, RUBY(a));
    tape_return(&tape, 25);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_log(&log_, "~(name lost) 20\n-(name lost) 5/5\n");
    assert_int_equal(only_session(&log_)->names_lost, 1);
    assert_int_equal(findings(&log_), 0);
    assert_false(only_session(&log_)->account.stopped);
}

static void a_torn_tail_ends_the_data_cleanly(void **state)
{
    (void)state;
    tape_snapshot(&tape, 0);
    tape_flip(&tape);
    size_t whole = tape.out.length;
    tape_snapshot(&tape, 10);
    tape_flip(&tape);
    tape.out.length = whole + 20;
    replay_tape(&log_, &tape);
    assert_int_equal(rat_replay_source(log_.replay, 0)->torn_bytes, 20);
    assert_int_equal(lane_account(&log_, 1)->decoded, 1);
    check_clean();
}

static void totals_that_do_not_meet_are_a_contradiction(void **state)
{
    (void)state;
    tape_snapshot(&tape, 0);
    tape_flip(&tape);
    tape_snapshot(&tape, 10);
    struct rat_chunk_info info = tape_info(&tape);
    info.opened.stored += 5;
    info.closed.stored += 5;
    tape_flip_as(&tape, info, true);
    replay_tape(&log_, &tape);
    assert_int_equal(only_session(&log_)->account.findings[RAT_FINDING_TOTALS].count, 1);
    assert_int_equal(only_session(&log_)->account.findings[RAT_FINDING_BALANCE].count, 1);
}

static void time_never_goes_back_within_a_lane(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 100, a);
    tape_flip(&tape);
    tape_snapshot(&tape, 110, RUBY(a));
    tape_return(&tape, 120);
    struct rat_chunk_info info = tape_info(&tape);
    info.start.monotonic_ns -= 50; /* an anchor that was read late */
    info.end.monotonic_ns -= 50;
    tape_flip_as(&tape, info, true);
    replay_tape(&log_, &tape);
    assert_log(&log_, "+a 100\n-a 0/0\n");
    assert_int_equal(only_session(&log_)->clamped, 2);
}

/* ---------------------------------------------------------------- hostile input */

/* Whatever the bytes: it ends, and nothing is read that is not there. */
static void any_cut_and_any_flipped_byte_are_survived(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_session_chunk(&tape, RAT_REASON_OPENING);
    for (int i = 0; i < 3; i++) {
        if (i == 0)
            tape_snapshot(&tape, tape.now + 1);
        else
            tape_snapshot(&tape, tape.now + 1, RUBY(a));
        tape_call(&tape, tape.now + 5, i == 0 ? a : b);
        if (i > 0)
            tape_return(&tape, tape.now + 5);
        tape_flip(&tape);
    }
    tape_session_chunk(&tape, RAT_REASON_CLOSING);
    size_t whole = tape.out.length;
    for (size_t at = 0; at < whole; at++) {
        tape.out.length = at;
        replay_tape(&log_, &tape);
        rat_replay_free(log_.replay);
        tape.out.length = whole;
        tape.out.bytes[at] ^= 0x41;
        replay_tape(&log_, &tape);
        for (size_t i = 0; i < rat_replay_session_count(log_.replay); i++) {
            const struct rat_session_account *account = &rat_replay_session(log_.replay, i)->account;
            for (size_t lane = 0; lane < account->lane_count; lane++)
                assert_true(rat_account_balanced(&account->lanes[lane]));
        }
        rat_replay_free(log_.replay);
        tape.out.bytes[at] ^= 0x41;
    }
    replay_tape(&log_, &tape);
    check_clean();
}

static void a_bound_on_memory_ends_the_replay_and_not_the_process(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    for (uint64_t i = 1; i < 200000; i++)
        tape_call(&tape, i, a);
    tape_flip(&tape);
    struct rat_visitor visitor = {0};
    struct rat_source source = {.bytes = tape.out.bytes, .length = tape.out.length};
    assert_int_equal(rat_replay_new(&source, 1, 8 << 20, &visitor, &log_.replay), RAT_OK);
    assert_int_equal(replay_on(log_.replay, 1000), RAT_NO_MEMORY);
}

/* ---------------------------------------------------------------- live */

static void feed_from(size_t at)
{
    assert_int_equal(rat_replay_feed(log_.replay, tape.out.bytes + at, tape.out.length - at), RAT_OK);
}

static void what_is_fed_piece_by_piece_is_one_stream_that_can_be_cut(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    struct rat_visitor visitor = {.user = &log_, .enter = log_enter, .leave = log_leave};
    log_.length = 0;
    assert_int_equal(rat_replay_new(NULL, 0, 0, &visitor, &log_.replay), RAT_OK);
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_call(&tape, 20, b);
    tape_flip(&tape);
    feed_from(0);
    assert_log(&log_, "+a 10\n+b 20\n");
    rat_replay_pause(log_.replay, 50);
    assert_log(&log_, "+a 10\n+b 20\n-b 30/30 open\n-a 40/10 open\n");
    log_.length = 0;
    assert_int_equal(rat_replay_resume(log_.replay), RAT_OK);
    tape_plain(&tape, 45, RAT_EVENT_SWITCH, CTX); /* told late: it counts as of the cut */
    tape_return(&tape, 48);
    tape_return(&tape, 70);
    tape_flip(&tape);
    feed_from(tape.chunk_at);
    assert_log(&log_, "~a 50\n~b 50\n-b 0/0\n-a 20/20\n");
    check_clean();
}

/* Else whoever reads a hostile file without the GVL could not be interrupted for minutes. */
static void a_large_chunk_ends_a_step(void **state)
{
    (void)state;
    char name[60001] = {0};
    for (int chunk = 0; chunk < 3; chunk++) {
        memset(name, 'a' + chunk, sizeof name - 1);
        tape_snapshot(&tape, 10 * chunk);
        tape_call(&tape, 10 * chunk + 1, frame(&tape, name));
        tape_return(&tape, 10 * chunk + 2);
        tape_flip(&tape);
    }
    struct rat_source source = {.bytes = tape.out.bytes, .length = tape.out.length};
    assert_int_equal(rat_replay_new(&source, 1, 0, &(struct rat_visitor){0}, &log_.replay), RAT_OK);
    assert_int_equal(rat_replay_step(log_.replay, 2048), RAT_OK);
    assert_int_equal(rat_replay_source(log_.replay, 0)->chunks, 1);
    assert_int_equal(replay_on(log_.replay, 2048), RAT_END);
    check_clean();
}

/* ---------------------------------------------------------------- what was left out, and what it cost */

static void gate(uint64_t at, uint32_t site, uint32_t frame, enum rat_gate_state state, uint64_t left_out)
{
    uint64_t payload[] = {rat_event_pair(site, frame), rat_event_pair(state, 30000), left_out};
    push_rich(&tape.words, RAT_EVENT_GATE, payload, RAT_GATE_WORDS, delta_to(&tape, at));
}

static void check_span(size_t index, uint32_t site, uint64_t from_ns, uint64_t to_ns, uint64_t left_out)
{
    const struct rat_omission *omission = &only_session(&log_)->omission;
    assert_true(index < omission->span_count);
    const struct rat_omission_span *span = &omission->spans[index];
    assert_int_equal(span->site, site);
    assert_int_equal(span->from_ns, from_ns);
    assert_int_equal(span->to_ns, to_ns);
    assert_int_equal(span->left_out, left_out);
}

static void a_closed_gate_is_a_span_with_the_calls_left_out(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    gate(10, 1, a, RAT_GATE_CLOSED, 0);
    gate(20, 2, b, RAT_GATE_CLOSED, 0);
    gate(30, 1, a, RAT_GATE_COUNT, 100);
    gate(40, 1, a, RAT_GATE_OPEN, 150);
    gate(50, 1, a, RAT_GATE_CLOSED, 150);
    gate(60, 1, a, RAT_GATE_COUNT, 157);
    gate(60, 2, b, RAT_GATE_COUNT, 3);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_int_equal(only_session(&log_)->omission.span_count, 3);
    check_span(0, 1, 10, 40, 150);
    check_span(1, 2, 20, 0, 3);
    check_span(2, 1, 50, 0, 7);
    assert_int_equal(only_session(&log_)->omission.left_out, 160);
    struct rat_catalog *catalog = rat_replay_catalog(log_.replay);
    const struct rat_catalog_frame *left_out = rat_catalog_frame(catalog, only_session(&log_)->omission.spans[0].frame);
    assert_memory_equal(rat_catalog_name(catalog, left_out->method).text, "a", 1);
    check_clean();
}

static void a_lost_closing_loses_no_calls_left_out(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    gate(10, 1, a, RAT_GATE_CLOSED, 0);
    tape_lose(&tape);
    gate(20, 1, a, RAT_GATE_COUNT, 5);
    gate(30, 1, a, RAT_GATE_OPEN, 9);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    check_span(0, 1, 20, 30, 9);
    assert_int_equal(only_session(&log_)->omission.left_out, 9);
}

static void more_sites_than_the_bound_are_counted_and_nothing_else(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    for (uint32_t site = 0; site <= RAT_OMISSION_SITES; site++)
        gate(1 + site, site, a, RAT_GATE_CLOSED, site);
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    const struct rat_omission *omission = &only_session(&log_)->omission;
    assert_int_equal(omission->site_count, RAT_OMISSION_SITES / 2);
    assert_int_equal(omission->untold, RAT_OMISSION_SITES / 2 + 1);
}

static void the_newest_cost_and_blindness_are_the_sessions(void **state)
{
    (void)state;
    uint64_t cost[] = {1, 2, 3, 4, 5}, newer[] = {10, 20, 30, 40, 50};
    uint64_t blind = rat_event_pair(RAT_NOTE_BLIND, RAT_BLIND_CALL | RAT_BLIND_RETURN);
    tape_snapshot(&tape, 0);
    push_rich(&tape.words, RAT_EVENT_COST, cost, RAT_COST_WORDS, delta_to(&tape, 1));
    push_rich(&tape.words, RAT_EVENT_COST, newer, RAT_COST_WORDS, delta_to(&tape, 2));
    push_rich(&tape.words, RAT_EVENT_NOTE, &blind, 1, delta_to(&tape, 3));
    tape_flip(&tape);
    replay_tape(&log_, &tape);
    assert_memory_equal(only_session(&log_)->cost, newer, sizeof newer);
    assert_int_equal(only_session(&log_)->blind, 3);
    check_clean();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_tape, close_tape)
    const struct CMUnitTest tests[] = {
        TEST(self_is_total_less_the_totals_called),
        TEST(frames_stay_open_across_chunks_and_segments),
        TEST(an_unwind_ends_as_many_frames_as_it_says),
        TEST(an_unmatched_return_pops_nothing),
        TEST(contexts_have_stacks_of_their_own),
        TEST(base_frames_are_open_and_not_called),
        TEST(an_end_closes_all_frames_with_its_reason),
        TEST(frames_open_at_the_end_of_the_data_end_at_the_last_time_known),
        TEST(a_context_id_given_to_another_fiber_starts_anew),
        TEST(a_missing_chunk_is_lost_and_its_frames_are_repaired),
        TEST(a_labelled_loss_has_its_cause),
        TEST(drops_are_counted_and_excuse_a_difference),
        TEST(a_difference_without_a_loss_is_a_contradiction),
        TEST(a_repair_by_the_recorder_is_no_contradiction),
        TEST(a_return_on_an_empty_stack_is_a_contradiction),
        TEST(a_return_of_another_kind_is_a_contradiction),
        TEST(an_event_before_its_context_is_a_contradiction),
        TEST(chunks_met_twice_count_once),
        TEST(segments_are_read_in_their_order_whatever_the_order_given),
        TEST(a_later_segment_alone_says_what_lies_before_it),
        TEST(a_damaged_body_is_lost_to_the_last_event),
        TEST(names_of_a_damaged_chunk_come_from_the_closing_one),
        TEST(chunks_lost_at_the_end_are_known_by_the_closing_one),
        TEST(a_lane_all_of_whose_chunks_are_lost_is_known_by_the_closing_one),
        TEST(a_lane_that_was_idle_in_the_only_segment_given_has_lost_nothing),
        TEST(a_closing_chunk_that_contradicts_what_was_read_is_found),
        TEST(names_in_no_readable_chunk_are_said_to_be_lost),
        TEST(a_torn_tail_ends_the_data_cleanly),
        TEST(totals_that_do_not_meet_are_a_contradiction),
        TEST(time_never_goes_back_within_a_lane),
        TEST(any_cut_and_any_flipped_byte_are_survived),
        TEST(a_bound_on_memory_ends_the_replay_and_not_the_process),
        TEST(what_is_fed_piece_by_piece_is_one_stream_that_can_be_cut),
        TEST(a_large_chunk_ends_a_step),
        TEST(a_closed_gate_is_a_span_with_the_calls_left_out),
        TEST(a_lost_closing_loses_no_calls_left_out),
        TEST(more_sites_than_the_bound_are_counted_and_nothing_else),
        TEST(the_newest_cost_and_blindness_are_the_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
