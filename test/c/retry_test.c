/* When to try again, and what an answer means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "deliver/retry.h"

#define NOW 1420070400 /* Thu, 01 Jan 2015 00:00:00 GMT */

static void test_the_longest_wait_doubles_up_to_the_cap(void **state)
{
    (void)state;
    for (uint32_t failures = 1; failures < 100; failures++) {
        uint64_t most = failures <= 9 ? UINT64_C(1000) << (failures - 1) : 300000;
        most = most < 300000 ? most : 300000;
        assert_int_equal(rat_retry_delay(failures, 1000, 300000, most), most);
        assert_int_equal(rat_retry_delay(failures, 1000, 300000, most + 1), 0); /* so it is no longer than that */
    }
}

static void test_the_jitter_is_full(void **state)
{
    (void)state;
    uint64_t random = 1, low = 0, high = 0;
    for (int i = 0; i < 10000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint64_t wait = rat_retry_delay(5, 1000, 300000, random >> 11);
        assert_true(wait <= 16000);
        low += wait < 4000;
        high += wait > 12000;
    }
    assert_in_range(low, 2200, 2800); /* a quarter each, when it is uniform; the numbers are the same each time */
    assert_in_range(high, 2200, 2800);
}

static void test_extreme_bounds_do_not_overflow(void **state)
{
    (void)state;
    assert_int_equal(rat_retry_delay(UINT32_MAX, UINT64_MAX / 2, UINT64_MAX, UINT64_MAX), UINT64_MAX);
    assert_int_equal(rat_retry_delay(7, 0, 0, 12345), 0);
    assert_int_equal(rat_retry_delay(1, 1000, 10, 11), 0);
}

static void assert_after(const char *value, uint64_t seconds)
{
    uint64_t found = 12345678;
    print_message("Retry-After: %s\n", value);
    assert_true(rat_retry_after(value, strlen(value), NOW, &found));
    assert_int_equal(found, seconds);
}

static void test_retry_after_in_seconds(void **state)
{
    (void)state;
    assert_after("0", 0);
    assert_after("120", 120);
    assert_after("  7 ", 7);
    assert_after("3600", 3600);
    assert_after("3601", RAT_RETRY_AFTER_MAX_S);
    assert_after("99999999999999999999999999", RAT_RETRY_AFTER_MAX_S);
}

static void test_retry_after_as_each_kind_of_date(void **state)
{
    (void)state;
    assert_after("Thu, 01 Jan 2015 00:01:30 GMT", 90);
    assert_after("Thursday, 01-Jan-15 00:01:30 GMT", 90);
    assert_after("Thu Jan  1 00:01:30 2015", 90);
    assert_after("Fri, 02 Jan 2015 00:00:00 GMT", RAT_RETRY_AFTER_MAX_S);
    assert_after("Wed, 31 Dec 2014 23:59:59 GMT", 0); /* it has passed */
    assert_after("Sun, 06 Nov 1994 08:49:37 GMT", 0);
}

static void test_retry_after_that_is_neither(void **state)
{
    (void)state;
    static const char *const values[] = {
        "", " ", "soon", "-1", "1.5", "12 s", "0x10", "Thu, 01 Jan 2015", "Thu, 01 Foo 2015 00:01:30 GMT",
        "Thu, 01 anF 2015 00:01:30 GMT", "Thu, 32 Jan 2015 00:01:30 GMT", "Thu, 01 Jan 2015 25:01:30 GMT",
        "Thu, 01 Jan 2015 00:01:30 GMTX", "Thu, 01 Jan 2015 00:01:30 +0100",
        "01234567890123456789012345678901234567890123456789012345678901234567890"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        uint64_t found;
        print_message("Retry-After: %s\n", values[i]);
        assert_false(rat_retry_after(values[i], strlen(values[i]), NOW, &found));
    }
}

static void test_what_answers_mean(void **state)
{
    (void)state;
    static const struct {
        unsigned from, to;
        enum rat_verdict verdict;
    } ranges[] = {
        {200, 299, RAT_VERDICT_ACCEPTED}, {300, 399, RAT_VERDICT_SENDER}, {400, 400, RAT_VERDICT_POISON},
        {401, 401, RAT_VERDICT_SENDER},   {402, 402, RAT_VERDICT_POISON}, {403, 405, RAT_VERDICT_SENDER},
        {406, 406, RAT_VERDICT_POISON},   {407, 407, RAT_VERDICT_SENDER}, {408, 408, RAT_VERDICT_AGAIN},
        {409, 424, RAT_VERDICT_POISON},   {425, 425, RAT_VERDICT_AGAIN},  {426, 428, RAT_VERDICT_POISON},
        {429, 429, RAT_VERDICT_AGAIN},    {430, 499, RAT_VERDICT_POISON}, {500, 599, RAT_VERDICT_AGAIN},
        {100, 199, RAT_VERDICT_AGAIN},    {600, 999, RAT_VERDICT_AGAIN},  {0, 0, RAT_VERDICT_AGAIN},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (unsigned status = ranges[i].from; status <= ranges[i].to; status++)
            assert_int_equal(rat_verdict(status), ranges[i].verdict);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_longest_wait_doubles_up_to_the_cap),
        cmocka_unit_test(test_the_jitter_is_full),
        cmocka_unit_test(test_extreme_bounds_do_not_overflow),
        cmocka_unit_test(test_retry_after_in_seconds),
        cmocka_unit_test(test_retry_after_as_each_kind_of_date),
        cmocka_unit_test(test_retry_after_that_is_neither),
        cmocka_unit_test(test_what_answers_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
