#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"

#define GHZ UINT64_C(1000000000)
#define MS UINT64_C(1000000) /* ns, and ticks at 1 GHz */

static enum rat_clock_kind kind;
static uint64_t ticks_per_s;

static int choose_best(void **state)
{
    (void)state;
    kind = rat_clock_choose(0, &ticks_per_s);
    return 0;
}

/* ---------------------------------------------------------------- this machine's clocks */

static void the_clock_chosen_has_a_name_and_a_plausible_rate(void **state)
{
    (void)state;
    assert_string_not_equal(rat_clock_name(kind), "unknown");
    assert_true(ticks_per_s >= 1000000 && ticks_per_s <= 100 * GHZ);
}

static void monotonic_can_be_forced_and_counts_nanoseconds(void **state)
{
    (void)state;
    uint64_t rate = 0;
    assert_int_equal(rat_clock_choose(RAT_CLOCK_MONOTONIC, &rate), RAT_CLOCK_MONOTONIC);
    assert_int_equal(rate, GHZ);
    uint64_t before = rat_clock_ns(CLOCK_MONOTONIC), ticks = rat_clock_ticks(RAT_CLOCK_MONOTONIC);
    assert_true(ticks >= before && ticks <= rat_clock_ns(CLOCK_MONOTONIC));
}

static void ticks_of_one_thread_do_not_run_backwards(void **state)
{
    (void)state;
    uint64_t last = rat_clock_ticks(kind);
    for (int i = 0; i < 100000; i++) {
        uint64_t now = rat_clock_ticks(kind);
        assert_true(now >= last);
        last = now;
    }
}

static void an_anchor_lies_between_the_ticks_around_it(void **state)
{
    (void)state;
    uint64_t before = rat_clock_ticks(kind), monotonic = rat_clock_ns(CLOCK_MONOTONIC);
    struct rat_anchor anchor = rat_anchor_take(kind);
    assert_true(anchor.ticks >= before);
    assert_true(anchor.ticks + anchor.width_ticks <= rat_clock_ticks(kind));
    assert_true(anchor.monotonic_ns >= monotonic && anchor.monotonic_ns <= rat_clock_ns(CLOCK_MONOTONIC));
    assert_true(anchor.realtime_ns > UINT64_C(1600000000) * GHZ); /* some time after 2020 */
    assert_int_equal(anchor.reserved, 0);
}

static void an_anchor_of_the_monotonic_clock_is_exact(void **state)
{
    (void)state;
    struct rat_anchor anchor = rat_anchor_take(RAT_CLOCK_MONOTONIC);
    assert_int_equal(anchor.width_ticks, 0);
    assert_int_equal(anchor.ticks, anchor.monotonic_ns);
}

static void anchors_of_the_clock_chosen_agree_with_its_rate(void **state)
{
    (void)state;
    struct rat_anchor from = rat_anchor_take(kind), to;
    do
        to = rat_anchor_take(kind);
    while (to.monotonic_ns - from.monotonic_ns < 2 * MS);
    assert_true(rat_anchor_agrees(&from, &to, ticks_per_s));
}

static void every_clock_has_its_name(void **state)
{
    (void)state;
    assert_string_equal(rat_clock_name(RAT_CLOCK_MONOTONIC), "monotonic");
    assert_string_equal(rat_clock_name(RAT_CLOCK_TSC), "tsc");
    assert_string_equal(rat_clock_name(RAT_CLOCK_CNTVCT), "cntvct");
    assert_string_equal(rat_clock_name((enum rat_clock_kind)99), "unknown");
}

/* ---------------------------------------------------------------- whether two anchors agree: a made-up 1 GHz counter */

static struct rat_anchor at(uint64_t ticks, uint64_t ns)
{
    return (struct rat_anchor){.ticks = ticks, .monotonic_ns = ns};
}

static bool agree(struct rat_anchor from, struct rat_anchor to)
{
    return rat_anchor_agrees(&from, &to, GHZ);
}

static void a_counter_that_keeps_its_rate_agrees(void **state)
{
    (void)state;
    assert_true(agree(at(0, 0), at(0, 0)));
    assert_true(agree(at(500, 7), at(500 + 3600 * GHZ, 7 + 3600 * GHZ)));
}

static void a_thousandth_and_a_millisecond_are_tolerated_and_no_more(void **state)
{
    (void)state;
    uint64_t hour = 3600 * GHZ, slack = hour / 1000 + MS;
    assert_true(agree(at(0, 0), at(hour + slack - 10, hour)));
    assert_false(agree(at(0, 0), at(hour + slack + 10, hour)));
    assert_true(agree(at(0, 0), at(hour - slack + 10, hour)));
    assert_false(agree(at(0, 0), at(hour - slack - 10, hour)));
}

static void the_anchors_own_uncertainty_is_tolerated(void **state)
{
    (void)state;
    struct rat_anchor from = at(0, 0), to = at(3 * MS, 0);
    assert_false(agree(from, to));
    from.width_ticks = to.width_ticks = (uint32_t)MS + 1;
    assert_true(agree(from, to));
}

static void a_counter_that_ran_backwards_is_a_break(void **state)
{
    (void)state;
    assert_false(agree(at(100, 0), at(99, 1)));
    assert_false(agree(at(0, 100), at(1, 99)));
}

static void a_counter_that_stood_still_is_a_break(void **state)
{
    (void)state;
    assert_false(agree(at(5, 0), at(5, 10 * MS)));
}

#define CHOSEN(test) cmocka_unit_test_setup(test, choose_best)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CHOSEN(the_clock_chosen_has_a_name_and_a_plausible_rate),
        cmocka_unit_test(monotonic_can_be_forced_and_counts_nanoseconds),
        CHOSEN(ticks_of_one_thread_do_not_run_backwards),
        CHOSEN(an_anchor_lies_between_the_ticks_around_it),
        cmocka_unit_test(an_anchor_of_the_monotonic_clock_is_exact),
        CHOSEN(anchors_of_the_clock_chosen_agree_with_its_rate),
        cmocka_unit_test(every_clock_has_its_name),
        cmocka_unit_test(a_counter_that_keeps_its_rate_agrees),
        cmocka_unit_test(a_thousandth_and_a_millisecond_are_tolerated_and_no_more),
        cmocka_unit_test(the_anchors_own_uncertainty_is_tolerated),
        cmocka_unit_test(a_counter_that_ran_backwards_is_a_break),
        cmocka_unit_test(a_counter_that_stood_still_is_a_break),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
