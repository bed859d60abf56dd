/* The life of a context in record/recorder.h: its own stack, its death, its id used again; by what the stream tells. */
#include "recorder_support.h"

static void test_each_context_has_a_stack_of_its_own(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, 8);
    enter(rig, one);
    enter(rig, one);
    return_at(rig, 1);
    enter(rig, two);
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig),
                        "snapshot 1:\ncall 7\nsnapshot 2:\ncall 8\nswitch 1\nreturn\nswitch 2\nreturn\n");
    assert_int_equal(rig->recorder.switches, 4);
    DONE(rig);
}

static void test_a_dead_context_ends_at_the_next_burial_and_no_earlier(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, 8);
    bury(rig, one);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nsnapshot 2:\ncall 8\n");
    enter(rig, two);
    return_at(rig, 1);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 0);
    assert_non_null(strstr(rig->reader.text, "end 1 died"));
    DONE(rig);
}

static void test_the_current_context_may_die(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    rig_drain(rig);
    bury(rig, one);
    enter(rig, two);
    call_at(rig, 1, 8);
    rig_drain(rig);
    assert_non_null(strstr(rig->reader.text, "end 1 died\nsnapshot 2:\ncall 8\n"));
    DONE(rig);
}

static void test_an_id_is_used_again_only_after_its_end_is_written(void **state)
{
    (void)state;
    struct rig *rig = malloc(sizeof *rig);
    rig_make(rig, BIG_SLOT, 2);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true), *three = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, 8);
    assert_false(enter(rig, three)); /* the table is full */
    assert_int_equal(rig->lane->drop[RAT_DROP_OUT_OF_MEMORY], 1);
    rig_drain(rig);
    bury(rig, one);
    assert_true(enter(rig, two));
    call_at(rig, 2, 9);
    assert_false(enter(rig, three)); /* the end is told, its chunk is not written */
    rig_drain(rig);
    assert_true(enter(rig, three));
    assert_int_equal(three->id, 1);
    call_at(rig, 1, 6);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 1);
    assert_int_equal(rig->reader.stacks[1].entries[0] >> 8, 6);
    DONE(rig);
}

/* Generations of contexts that die together, more of them than the first ring of retired ids holds. */
static void test_ids_of_many_dead_contexts_are_used_again_oldest_first(void **state)
{
    (void)state;
    enum { MANY = 100, GENERATIONS = 5 };
    struct rig *rig = malloc(sizeof *rig);
    rig_make(rig, BIG_SLOT, MANY + 1);
    struct rat_context *last = new_context(rig, true), *many[MANY];
    enter(rig, last);
    rat_context_id ids[MANY];
    for (int generation = 0; generation < GENERATIONS; generation++) {
        for (int i = 0; i < MANY; i++) {
            many[i] = rat_context_new(true);
            assert_true(enter(rig, many[i]));
            if (generation > 0)
                assert_int_equal(many[i]->id, ids[i]);
        }
        enter(rig, last);
        for (int i = MANY; i-- > 0;) { /* burial takes the last first */
            ids[i] = many[i]->id;
            rat_context_release(many[i], &rig->recorder);
        }
        enter(rig, last);
        call_at(rig, 1, 7);
        return_at(rig, 1);
        rig_drain(rig);
    }
    DONE(rig);
}

static void test_a_context_released_without_a_recorder_is_freed_at_once(void **state)
{
    (void)state;
    rat_context_release(rat_context_new(true), NULL);
    rat_context_release(rat_context_new(false), NULL); /* the leak check is the assertion */
}

static void test_a_context_that_was_never_told_is_buried_without_a_word(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *never = new_context(rig, true);
    enter(rig, new_context(rig, true));
    bury(rig, never);
    call_at(rig, 1, 7);
    rat_recorder_bury(&rig->recorder, rig->now);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\n");
    DONE(rig);
}

static void test_the_end_ends_every_context_with_open_frames(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true), *idle = new_context(rig, true);
    enter(rig, idle);
    call_at(rig, 1, 6);
    return_at(rig, 1);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, 8);
    rig_drain(rig);
    rat_recorder_end_all(&rig->recorder, RAT_END_STOP, rig->now);
    rig_drain(rig);
    assert_non_null(strstr(rig->reader.text, "end 2 stop"));
    assert_non_null(strstr(rig->reader.text, "end 3 stop"));
    assert_null(strstr(rig->reader.text, "end 1"));
    for (int i = 1; i <= 3; i++)
        assert_int_equal(rig->reader.stacks[i].depth, 0);
    DONE(rig);
}

static void test_a_forgotten_context_begins_with_a_base(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *context = new_context(rig, true);
    enter(rig, context);
    call_at(rig, 1, 7);
    rig_drain(rig);
    rat_recorder_reset(&rig->recorder);
    rat_context_forget(context, false);
    assert_int_equal(rig->recorder.ec, 0);
    assert_int_equal(context->id, 0);
    assert_true(context->base_due);
    assert_ptr_equal(context->top, context->entries);
    rig->lane->drop[RAT_DROP_SLOT_FULL] = 0;
    DONE(rig);
}

static void test_of_chosen_methods_only_nothing_is_below_a_forgotten_context(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *context = new_context(rig, true);
    enter(rig, context);
    call_at(rig, 1, 7);
    rig->recorder.scoped = true;
    rat_recorder_restart(&rig->recorder);
    assert_false(context->base_due);
    assert_int_equal(rat_recorder_depth(&rig->recorder), 0);
    rig_drain(rig);
    rat_recorder_reset(&rig->recorder);
    rat_context_forget(context, true);
    assert_false(context->base_due);
    rig->lane->drop[RAT_DROP_SLOT_FULL] = 0;
    DONE(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_context_has_a_stack_of_its_own),
        cmocka_unit_test(test_a_dead_context_ends_at_the_next_burial_and_no_earlier),
        cmocka_unit_test(test_the_current_context_may_die),
        cmocka_unit_test(test_an_id_is_used_again_only_after_its_end_is_written),
        cmocka_unit_test(test_ids_of_many_dead_contexts_are_used_again_oldest_first),
        cmocka_unit_test(test_a_context_released_without_a_recorder_is_freed_at_once),
        cmocka_unit_test(test_a_context_that_was_never_told_is_buried_without_a_word),
        cmocka_unit_test(test_the_end_ends_every_context_with_open_frames),
        cmocka_unit_test(test_a_forgotten_context_begins_with_a_base),
        cmocka_unit_test(test_of_chosen_methods_only_nothing_is_below_a_forgotten_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
