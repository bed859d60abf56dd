/* The shadow rules of record/recorder.h, by what the stream tells. */
#include "recorder_support.h"

/* ---------------------------------------------------------------- calls and returns */

static void test_a_call_and_its_return_are_told_after_one_snapshot(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call(rig, word_at(2), 8, true);
    give_back(rig, word_at(2), true);
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nc_call 8\nc_return\nreturn\n");
    assert_int_equal(rat_recorder_depth(&rig->recorder), 0);
    DONE(rig);
}

static void test_entries_whose_frames_vanished_are_unwound_by_the_next_call(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 5; depth++)
        call_at(rig, depth, depth);
    call_at(rig, 3, 9); /* frames 3 to 5 went without an event */
    return_at(rig, 3);
    return_at(rig, 2);
    assert_string_equal(rig_drain(rig),
                        "snapshot 1:\ncall 1\ncall 2\ncall 3\ncall 4\ncall 5\nunwind 3\ncall 9\nreturn\nreturn\n");
    assert_int_equal(rig->recorder.unwound, 3);
    DONE(rig);
}

static void test_a_return_that_matches_deeper_unwinds_what_lies_above(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 4; depth++)
        call_at(rig, depth, depth);
    return_at(rig, 2);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 1\ncall 2\ncall 3\ncall 4\nunwind 2\nreturn\n");
    assert_int_equal(rat_recorder_depth(&rig->recorder), 1);
    DONE(rig);
}

static void test_a_return_that_matches_nothing_pops_nothing(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    return_at(rig, 5);
    return_at(rig, 1);
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nunmatched\nreturn\nunmatched\n");
    assert_int_equal(rig->recorder.unmatched, 2);
    DONE(rig);
}

static void test_the_newest_entry_of_an_id_is_found(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, 8);
    call_at(rig, 3, 7);
    assert_int_equal(rat_recorder_find_id(&rig->recorder, 7), 0);
    assert_int_equal(rat_recorder_find_id(&rig->recorder, 8), 1);
    assert_int_equal(rat_recorder_find_id(&rig->recorder, 9), -1);
    assert_int_equal(rat_recorder_find(&rig->recorder, word_at(1)), 2);
    DONE(rig);
}

static void test_a_shadow_grows_to_100000_entries_and_back(void **state)
{
    (void)state;
    RIG(rig, 4 * BIG_SLOT);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 100000; depth++)
        call_at(rig, depth, 2 + depth % 5);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 100000);
    call_at(rig, 100001, 3); /* a new interval: all of it in one snapshot */
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 100001);
    for (uint32_t depth = 100001; depth >= 1; depth--)
        return_at(rig, depth);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 0);
    assert_int_equal(rig_dropped(rig), 0);
    DONE(rig);
}

/* ---------------------------------------------------------------- hidden frames */

static void test_hidden_frames_are_kept_and_never_told(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, RAT_FRAME_HIDDEN);
    call_at(rig, 3, 8);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\ncall 8\n");
    call_at(rig, 4, 9);
    assert_string_equal(rig_drain(rig), "snapshot 1: 7 8\ncall 9\n");
    return_at(rig, 2); /* ends 4 and 3, and itself is nobody's business */
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig), "snapshot 1: 7 8 9\nunwind 2\nreturn\n");
    DONE(rig);
}

static void test_unwinding_only_hidden_frames_tells_nothing(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, RAT_FRAME_HIDDEN);
    call_at(rig, 3, RAT_FRAME_HIDDEN);
    call_at(rig, 2, 8);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\ncall 8\n");
    DONE(rig);
}

static void test_a_context_that_comes_with_a_hidden_frame_is_told_before_its_first_event(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, RAT_FRAME_HIDDEN);
    call_at(rig, 2, 8);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 1);
    assert_int_equal(rig->reader.stacks[2].depth, 1);
    assert_int_equal(rig->reader.stacks[2].entries[0] >> 8, 8);
    DONE(rig);
}

static void test_a_context_that_comes_with_a_hidden_return_is_told_before_its_first_event(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, two);
    call_at(rig, 1, 8);
    call_at(rig, 2, RAT_FRAME_HIDDEN);
    enter(rig, one);
    call_at(rig, 1, 7);
    rig_drain(rig);
    enter(rig, one);
    call_at(rig, 2, 7);
    enter(rig, two);
    return_at(rig, 2);
    return_at(rig, 1);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[two->id].depth, 0);
    assert_int_equal(rig->reader.stacks[one->id].depth, 2);
    DONE(rig);
}

/* ---------------------------------------------------------------- base */

static void take_base(struct rig *rig, uint32_t frames)
{
    rat_recorder_begin_base(&rig->recorder);
    for (uint32_t i = 0; i < frames; i++)
        assert_true(rat_recorder_push_base(&rig->recorder, 2 + i));
}

static void test_base_frames_are_told_with_the_first_event(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, false));
    assert_true(rig->recorder.context->base_due);
    assert_true(rig->recorder.top->word <= word_at(4)); /* so that the first event goes the cold way */
    take_base(rig, 3);
    rat_recorder_call(&rig->recorder, RAT_EVENT_CALL, word_at(4), 9, RAT_FRAME_INSTANCE, rig->now);
    rig_drain(rig);
    const struct stack *stack = &rig->reader.stacks[1];
    assert_int_equal(stack->depth, 4);
    assert_int_equal(stack->entries[0], rat_event_entry(2, RAT_FRAME_BASE));
    assert_int_equal(stack->entries[3], rat_event_entry(9, RAT_FRAME_INSTANCE));
    DONE(rig);
}

static void test_a_base_taken_in_an_open_interval_is_told(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    enter(rig, new_context(rig, false));
    take_base(rig, 2);
    rat_recorder_return(&rig->recorder, RAT_EVENT_RETURN, 0, rig->now);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nsnapshot 2: 2b 3b\nreturn\n");
    assert_int_equal(rig->recorder.context->base, 1);
    DONE(rig);
}

static void test_a_settled_base_needs_no_count_for_later_events_above_it(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, false));
    take_base(rig, 3);
    assert_false(rig->recorder.top->word > word_at(4)); /* not counted yet: cold */
    rat_recorder_settle_base(&rig->recorder, word_at(4));
    assert_true(rig->recorder.top->word > word_at(4));
    assert_true(rig->recorder.top->word <= word_at(3)); /* from above the known place: counted again */
    rat_recorder_settle_base(&rig->recorder, word_at(3));
    for (uint32_t i = 1; i <= 3; i++)
        assert_true(rig->recorder.context->entries[i].word == word_at(3) + 1);
    DONE(rig);
}

static void test_base_frames_are_neither_stale_nor_found(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, false));
    take_base(rig, 2);
    assert_int_equal(rat_recorder_drop_stale(&rig->recorder, word_at(9), rig->now), 0);
    assert_int_equal(rat_recorder_find(&rig->recorder, 1), -1);
    assert_int_equal(rat_recorder_find_id(&rig->recorder, 3), -1);
    assert_int_equal(rat_recorder_above_base(&rig->recorder), 0);
    DONE(rig);
}

static void test_unwinding_into_the_base_shortens_it(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, false));
    take_base(rig, 3);
    rat_recorder_settle_base(&rig->recorder, word_at(4));
    call_at(rig, 4, 9);
    rat_recorder_unwind(&rig->recorder, 3, rig->now);
    assert_int_equal(rig->recorder.context->base, 1);
    assert_int_equal(rat_recorder_depth(&rig->recorder), 1);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 1);
    DONE(rig);
}

static void test_a_context_is_told_anew_after_a_restart(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    rat_recorder_restart(&rig->recorder);
    rat_recorder_repair(&rig->recorder, rig->now);
    take_base(rig, 1);
    rat_recorder_call(&rig->recorder, RAT_EVENT_CALL, word_at(2), 9, RAT_FRAME_INSTANCE, rig->now);
    rig_drain(rig);
    const struct stack *stack = &rig->reader.stacks[1];
    assert_int_equal(stack->depth, 2);
    assert_int_equal(stack->entries[0], rat_event_entry(2, RAT_FRAME_BASE));
    DONE(rig);
}

/* ---------------------------------------------------------------- intervals */

static void test_every_interval_begins_with_the_whole_stack(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 3; depth++) {
        call_at(rig, depth, depth + 1);
        rig_drain(rig);
    }
    return_at(rig, 3);
    assert_string_equal(rig_drain(rig), "snapshot 1: 2 3 4\nreturn\n");
    DONE(rig);
}

static void test_a_new_interval_verifies_the_shadow_and_says_so_when_it_was_wrong(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    watch_verify(rig);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, 8);
    rig_drain(rig);
    rig->verify_removes = 1;
    call_at(rig, 3, 9);
    assert_string_equal(rig_drain(rig), "repair 1: 7\ncall 9\n");
    DONE(rig);
}

/* What is taken off is still in the snapshot that its interval opens with: nobody else may take it off in between. */
static void test_no_shadow_is_verified_while_frames_of_it_are_taken_off(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    watch_verify(rig);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 4; depth++)
        call_at(rig, depth, 6 + depth);
    rig_drain(rig);
    rig->verify_removes = 2;
    call_at(rig, 2, 20);
    assert_string_equal(rig_drain(rig), "snapshot 1: 7 8 9 10\nunwind 3\ncall 20\n");
    assert_int_equal(rat_recorder_depth(&rig->recorder), 2);
    rig->verify_removes = 0;
    call_at(rig, 3, 21);
    call_at(rig, 4, 22);
    rig_drain(rig);
    rig->verify_removes = 3;
    return_at(rig, 2);
    assert_string_equal(rig_drain(rig), "snapshot 1: 7 20 21 22\nunwind 2\nreturn\n");
    assert_int_equal(rat_recorder_depth(&rig->recorder), 1);
    DONE(rig);
}

static void test_more_is_never_taken_off_than_there_is(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    watch_verify(rig);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    rig_drain(rig);
    rig->verify_removes = 1;
    return_at(rig, 1);
    assert_int_equal(rat_recorder_depth(&rig->recorder), 0);
    assert_int_equal(rat_recorder_above_base(&rig->recorder), 0);
    DONE(rig);
}

static void test_no_shadow_is_verified_against_another_fibers_stack(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    watch_verify(rig);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true), *three = new_context(rig, true);
    enter(rig, three);
    call_at(rig, 1, 6);
    enter(rig, two);
    call_at(rig, 1, 7);
    enter(rig, one);
    call_at(rig, 1, 8);
    bury(rig, three);
    rig_drain(rig);
    rig->verified = 0;
    enter(rig, two); /* the burial of `three` opens the interval while `one` is still current */
    call_at(rig, 2, 9);
    assert_int_equal(rig->verified, 1);
    assert_ptr_equal(rig->verified_context, two);
    DONE(rig);
}

static void test_after_the_first_loss_an_interval_takes_nothing_more(void **state)
{
    (void)state;
    RIG(rig, 64);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 5; depth++) /* the snapshot takes 3 of 8 words */
        call_at(rig, depth, depth);
    assert_int_equal(rig_dropped(rig), 0);
    call_at(rig, 6, 6);
    return_at(rig, 6);
    assert_int_equal(rig->lane->drop[RAT_DROP_SLOT_FULL], 2);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 1\ncall 2\ncall 3\ncall 4\ncall 5\n");
    return_at(rig, 5);
    assert_string_equal(rig_drain(rig), "snapshot 1: 1 2 3 4 5\nreturn\n");
    DONE(rig);
}

static void test_a_stack_too_deep_for_its_slot_is_counted_and_comes_back(void **state)
{
    (void)state;
    RIG(rig, 64);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 30; depth++) {
        call_at(rig, depth, 5);
        rig_drain(rig);
    }
    assert_true(rig_dropped(rig) > 0);
    for (uint32_t depth = 30; depth > 2; depth--)
        return_at(rig, depth);
    call_at(rig, 3, 9);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5 5 5 5 5 5 5 5 5\n"); /* the largest that fits */
    return_at(rig, 3);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5 9\nreturn\n");
    return_at(rig, 2);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5\nreturn\n");
    DONE(rig);
}

/* Deep recursion in a small slot: its events cost what others cost, not a walk over the stack each. */
static void test_a_stack_too_deep_for_its_slot_is_not_verified_for_each_event(void **state)
{
    (void)state;
    RIG(rig, 64);
    watch_verify(rig);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 10; depth++) {
        call_at(rig, depth, 5);
        rig_drain(rig);
    }
    rig->verified = 0;
    call_at(rig, 11, 5);
    rig_drain(rig); /* from here on the slot is empty, and each event may try it anew */
    for (uint32_t depth = 12; depth <= 100; depth++)
        call_at(rig, depth, 5);
    for (uint32_t depth = 100; depth > 10; depth--)
        return_at(rig, depth);
    assert_int_equal(rig->verified, 1); /* ten frames fit */
    call_at(rig, 11, 9);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5 5 5 5 5 5 5 5 5\n");
    DONE(rig);
}

static void test_hidden_frames_make_no_stack_too_deep_for_its_slot(void **state)
{
    (void)state;
    RIG(rig, 64);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 11; depth++)
        call_at(rig, depth, 5);
    for (uint32_t depth = 12; depth <= 40; depth++)
        call_at(rig, depth, RAT_FRAME_HIDDEN);
    rig_drain(rig);
    for (uint32_t depth = 40; depth > 10; depth--)
        return_at(rig, depth);
    for (uint32_t depth = 11; depth <= 40; depth++)
        call_at(rig, depth, RAT_FRAME_HIDDEN);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5 5 5 5 5 5 5 5 5\n");
    DONE(rig);
}

static void test_a_pause_longer_than_a_delta_goes_into_a_gap(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    rig->now += RAT_EVENT_DELTA_MAX * 3;
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nreturn\n");
    assert_int_equal(rig->reader.ticks, rig->now);
    DONE(rig);
}

static void test_a_note_is_told_with_its_value(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    rat_recorder_note(&rig->recorder, RAT_NOTE_PUBLIC_PATH, 42, rig->now);
    assert_string_equal(rig_drain(rig), "snapshot 1:\nnote 1 42\n");
    DONE(rig);
}

static void test_without_a_lane_nothing_is_told_and_nothing_breaks(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_recorder saved = rig->recorder;
    rat_lane_detach(&rig->recorder.lane);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, 8);
    return_at(rig, 1);
    assert_int_equal(rat_recorder_depth(&rig->recorder), 0);
    rig->recorder.lane = saved.lane;
    assert_string_equal(rig_drain(rig), "");
    DONE(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_and_its_return_are_told_after_one_snapshot),
        cmocka_unit_test(test_entries_whose_frames_vanished_are_unwound_by_the_next_call),
        cmocka_unit_test(test_a_return_that_matches_deeper_unwinds_what_lies_above),
        cmocka_unit_test(test_a_return_that_matches_nothing_pops_nothing),
        cmocka_unit_test(test_the_newest_entry_of_an_id_is_found),
        cmocka_unit_test(test_a_shadow_grows_to_100000_entries_and_back),
        cmocka_unit_test(test_hidden_frames_are_kept_and_never_told),
        cmocka_unit_test(test_unwinding_only_hidden_frames_tells_nothing),
        cmocka_unit_test(test_a_context_that_comes_with_a_hidden_frame_is_told_before_its_first_event),
        cmocka_unit_test(test_a_context_that_comes_with_a_hidden_return_is_told_before_its_first_event),
        cmocka_unit_test(test_base_frames_are_told_with_the_first_event),
        cmocka_unit_test(test_a_base_taken_in_an_open_interval_is_told),
        cmocka_unit_test(test_a_settled_base_needs_no_count_for_later_events_above_it),
        cmocka_unit_test(test_base_frames_are_neither_stale_nor_found),
        cmocka_unit_test(test_unwinding_into_the_base_shortens_it),
        cmocka_unit_test(test_a_context_is_told_anew_after_a_restart),
        cmocka_unit_test(test_every_interval_begins_with_the_whole_stack),
        cmocka_unit_test(test_a_new_interval_verifies_the_shadow_and_says_so_when_it_was_wrong),
        cmocka_unit_test(test_no_shadow_is_verified_while_frames_of_it_are_taken_off),
        cmocka_unit_test(test_more_is_never_taken_off_than_there_is),
        cmocka_unit_test(test_no_shadow_is_verified_against_another_fibers_stack),
        cmocka_unit_test(test_after_the_first_loss_an_interval_takes_nothing_more),
        cmocka_unit_test(test_a_stack_too_deep_for_its_slot_is_counted_and_comes_back),
        cmocka_unit_test(test_a_stack_too_deep_for_its_slot_is_not_verified_for_each_event),
        cmocka_unit_test(test_hidden_frames_make_no_stack_too_deep_for_its_slot),
        cmocka_unit_test(test_a_pause_longer_than_a_delta_goes_into_a_gap),
        cmocka_unit_test(test_a_note_is_told_with_its_value),
        cmocka_unit_test(test_without_a_lane_nothing_is_told_and_nothing_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
