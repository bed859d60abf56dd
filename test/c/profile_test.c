#include "model_support.h"

static struct tape tape;
static struct log log_;
static struct rat_profile *profile;

static int open_tape(void **state)
{
    (void)state;
    tape_open(&tape);
    return 0;
}

static int close_tape(void **state)
{
    (void)state;
    rat_profile_free(profile);
    rat_replay_free(log_.replay);
    profile = NULL;
    log_.replay = NULL;
    tape_close(&tape);
    return 0;
}

static void profile_tape_as(uint32_t nodes_max, bool merged)
{
    struct rat_visitor visitor;
    struct rat_source source = {.bytes = tape.out.bytes, .length = tape.out.length};
    assert_int_equal(rat_profile_new(nodes_max, merged, &profile, &visitor), RAT_OK);
    assert_int_equal(rat_replay_new(&source, 1, 0, &visitor, &log_.replay), RAT_OK);
    rat_profile_bind(profile, rat_replay_allowance(log_.replay));
    assert_int_equal(replay_on(log_.replay, UINT64_MAX), RAT_END);
}

/* "a 2 30/10 max 20" = method, calls, total/self, max; a line a method. */
static const char *flat(size_t thread)
{
    const struct rat_profile_flat *rows;
    size_t count;
    uint32_t frames = rat_catalog_frames(rat_replay_catalog(log_.replay));
    assert_int_equal(rat_profile_flatten(profile, frames, thread, &rows, &count), RAT_OK);
    log_.length = 0;
    log_.text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        log_line(&log_, "%s %llu %llu/%llu max %llu\n", method_of(&log_, rows[i].frame),
                 (unsigned long long)rows[i].calls, (unsigned long long)rows[i].total_ns,
                 (unsigned long long)rows[i].self_ns, (unsigned long long)rows[i].max_ns);
    return log_.text;
}

/* A node's total is its self and its children's totals; parents come before their children. */
static void check_tree(void)
{
    uint64_t self = 0, roots = 0;
    for (uint32_t id = 1; id <= rat_profile_node_count(profile); id++) {
        const struct rat_profile_node *node = rat_profile_node(profile, id);
        uint64_t below = 0;
        for (uint32_t child = node->first_child; child; child = rat_profile_node(profile, child)->next_sibling) {
            assert_true(child > id);
            assert_int_equal(rat_profile_node(profile, child)->parent, id);
            below += rat_profile_node(profile, child)->total_ns;
        }
        self += node->self_ns;
        if (node->frame == 0)
            roots += below;
        else
            assert_int_equal(node->total_ns, node->self_ns + below);
    }
    assert_int_equal(self, roots);
    uint64_t threads = 0;
    for (size_t i = 0; i < rat_profile_thread_count(profile); i++)
        threads += rat_profile_thread(profile, i)->total_ns;
    assert_int_equal(threads, roots);
}

static void calls_are_added_up_by_path_and_by_method(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_call(&tape, 20, b);
    tape_return(&tape, 30);
    tape_return(&tape, 40);
    tape_call(&tape, 50, b);
    tape_return(&tape, 70);
    tape_flip(&tape);
    profile_tape_as(0, false);
    assert_string_equal(flat(SIZE_MAX), "a 1 30/20 max 30\nb 2 30/30 max 20\n");
    assert_int_equal(rat_profile_node_count(profile), 4); /* root, a, a/b, b */
    check_tree();
}

static void recursion_counts_once_in_a_total(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_call(&tape, 20, b);
    tape_call(&tape, 30, a);
    tape_return(&tape, 40);
    tape_return(&tape, 50);
    tape_return(&tape, 100);
    tape_flip(&tape);
    profile_tape_as(0, false);
    assert_string_equal(flat(SIZE_MAX), "a 2 90/70 max 90\nb 1 30/20 max 30\n");
    check_tree();
}

static void fibers_count_under_their_thread(void **state)
{
    (void)state;
    uint32_t fiber = add_context(&tape.session, RAT_CONTEXT_FIBER, CTX, NULL);
    uint32_t worker = add_context(&tape.session, RAT_CONTEXT_THREAD, 0, "worker");
    uint32_t a = frame(&tape, "a");
    const uint32_t contexts[] = {CTX, fiber, worker};
    for (int i = 0; i < 3; i++) {
        tape_snapshot_of(&tape, tape.now, contexts[i], RAT_SNAPSHOT_SLOT, ENTRIES());
        tape_call(&tape, tape.now + 1, a);
        tape_return(&tape, tape.now + 10);
    }
    tape_flip(&tape);
    profile_tape_as(0, false);
    assert_int_equal(rat_profile_thread_count(profile), 2);
    assert_int_equal(rat_profile_thread(profile, 0)->fibers, 1);
    assert_string_equal(flat(0), "a 2 20/20 max 10\n");
    assert_int_equal(rat_profile_thread(profile, 1)->os_tid, 4712);
    assert_string_equal(flat(1), "a 1 10/10 max 10\n");
    assert_string_equal(flat(SIZE_MAX), "a 3 30/30 max 10\n");
    check_tree();
}

static void threads_can_be_merged_into_one(void **state)
{
    (void)state;
    uint32_t worker = add_context(&tape.session, RAT_CONTEXT_THREAD, 0, "worker");
    uint32_t a = frame(&tape, "a");
    for (uint32_t i = 0; i < 2; i++) {
        tape_snapshot_of(&tape, tape.now, i ? worker : CTX, RAT_SNAPSHOT_SLOT, ENTRIES());
        tape_call(&tape, tape.now + 1, a);
        tape_return(&tape, tape.now + 10);
    }
    tape_flip(&tape);
    profile_tape_as(0, true);
    assert_int_equal(rat_profile_thread_count(profile), 1);
    assert_int_equal(rat_profile_node_count(profile), 2);
    assert_string_equal(flat(0), "a 2 20/20 max 10\n");
    check_tree();
}

static void base_frames_have_time_and_no_calls(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0, BASE(a));
    tape_call(&tape, 10, a);
    tape_return(&tape, 30);
    tape_return(&tape, 50);
    tape_flip(&tape);
    profile_tape_as(0, false);
    assert_string_equal(flat(SIZE_MAX), "a 1 20/20 max 20\na(base) 0 50/30 max 50\n");
    check_tree();
}

static void paths_beyond_the_bound_are_folded_and_no_time_is_lost(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a"), b = frame(&tape, "b"), c = frame(&tape, "c");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 0, a);
    tape_call(&tape, 10, b); /* the third node: one too many */
    tape_call(&tape, 20, c);
    tape_return(&tape, 50);
    tape_return(&tape, 60);
    tape_call(&tape, 60, c);
    tape_return(&tape, 70);
    tape_return(&tape, 100);
    tape_flip(&tape);
    profile_tape_as(2, false);
    assert_string_equal(flat(SIZE_MAX), "(folded) 3 60/60 max 50\na 1 100/40 max 100\n");
    assert_int_equal(rat_profile_folded(profile), 3);
    check_tree();
}

static void frames_still_open_are_counted_for_their_thread(void **state)
{
    (void)state;
    uint32_t a = frame(&tape, "a");
    tape_snapshot(&tape, 0);
    tape_call(&tape, 10, a);
    tape_call(&tape, 20, a);
    tape_flip(&tape);
    profile_tape_as(0, false);
    assert_int_equal(rat_profile_thread(profile, 0)->open, 2);
    check_tree();
}

/* Events as they come, true to no stack, with drops and missing chunks: the sums hold all the same. */
static void any_events_keep_the_sums_true(void **state)
{
    (void)state;
    uint64_t seed = take_seed("profile_test");
    uint32_t frames[8];
    for (int i = 0; i < 8; i++)
        frames[i] = frame(&tape, (const char[]){(char)('a' + i), 0});
    uint32_t other = add_context(&tape.session, RAT_CONTEXT_FIBER, CTX, NULL);
    for (int chunk = 0; chunk < 40; chunk++) {
        for (int i = 0; i < 200; i++) {
            uint64_t random = next_random(&seed), at = tape.now + random % 50;
            uint32_t context = random >> 32 & 1 ? CTX : other;
            uint32_t some = frames[random >> 8 & 7];
            switch (random >> 16 & 15) {
            case 0:
                tape_snapshot_of(&tape, at, context, (uint32_t)(random >> 40 & 3), ENTRIES(RUBY(some), BASE(frames[0])));
                break;
            case 1:
                tape_plain(&tape, at, RAT_EVENT_SWITCH, context);
                break;
            case 2:
                tape_plain(&tape, at, RAT_EVENT_UNWIND, (uint32_t)(random >> 40 & 7));
                break;
            case 3:
                tape_end(&tape, at, context, (enum rat_end_reason)(random >> 40 & 3));
                break;
            case 4:
                tape_plain(&tape, at, random & 1 ? RAT_EVENT_C_RETURN : RAT_EVENT_UNMATCHED, 0);
                break;
            case 5:
            case 6:
            case 7:
            case 8:
                tape_return(&tape, at);
                break;
            default:
                tape_call(&tape, at, some);
            }
        }
        tape.drops = chunk % 7 == 3 ? 5 : 0;
        if (chunk % 9 == 4)
            tape_lose(&tape);
        else
            tape_flip(&tape);
    }
    profile_tape_as(300, false);
    check_tree();
    for (size_t lane = 0; lane < only_session(&log_)->account.lane_count; lane++)
        assert_true(rat_account_balanced(&only_session(&log_)->account.lanes[lane]));
    for (uint32_t id = 1; id <= rat_profile_node_count(profile); id++) { /* no negative time in disguise */
        assert_true(rat_profile_node(profile, id)->self_ns <= tape.now * 200);
        assert_true(rat_profile_node(profile, id)->max_ns <= tape.now);
    }
}

/* Not a check: says how fast this machine is. */
static void speed_is_told(void **state)
{
    (void)state;
    uint32_t frames[64];
    for (int i = 0; i < 64; i++)
        frames[i] = frame(&tape, (const char[]){'m', (char)('a' + i % 26), (char)('a' + i / 26), 0});
    uint64_t seed = 1, events = 0;
    uint32_t stack[32], entries[33];
    uint32_t depth = 0;
    for (int chunk = 0; chunk < 10; chunk++) {
        for (uint32_t i = 0; i < depth; i++)
            entries[i] = RUBY(stack[i]);
        entries[depth] = 0;
        tape_snapshot_of(&tape, tape.now + 1, CTX, RAT_SNAPSHOT_SLOT, entries);
        for (int i = 0; i < 200000; i++) {
            uint64_t random = next_random(&seed);
            if (depth < 8 && (depth == 0 || random & 1)) { /* each method calls three others */
                uint32_t caller = depth ? stack[depth - 1] : 0;
                stack[depth++] = frames[(caller * 3 + (random >> 8) % 3) % 64];
                tape_call(&tape, tape.now + (random >> 32 & 127), stack[depth - 1]);
            } else {
                depth--;
                tape_return(&tape, tape.now + (random >> 32 & 127));
            }
        }
        events += tape.words.events;
        tape_flip(&tape);
    }
    uint64_t start = rat_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    profile_tape_as(0, false);
    uint64_t took = rat_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start;
    printf("replay and profile: %.1f M events/s, %zu nodes\n", (double)events * 1e3 / (double)took,
           rat_profile_node_count(profile));
    assert_int_equal(findings(&log_), 0);
    check_tree();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_tape, close_tape)
    const struct CMUnitTest tests[] = {
        TEST(calls_are_added_up_by_path_and_by_method),
        TEST(recursion_counts_once_in_a_total),
        TEST(fibers_count_under_their_thread),
        TEST(threads_can_be_merged_into_one),
        TEST(base_frames_have_time_and_no_calls),
        TEST(paths_beyond_the_bound_are_folded_and_no_time_is_lost),
        TEST(frames_still_open_are_counted_for_their_thread),
        TEST(any_events_keep_the_sums_true),
        TEST(speed_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
