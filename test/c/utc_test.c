#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/utc.h"

#define DAY UINT64_C(86400)

static void assert_as_the_library(uint64_t seconds)
{
    time_t time = (time_t)seconds;
    struct tm expected;
    struct rat_utc utc;
    gmtime_r(&time, &expected);
    assert_true(rat_utc_of(seconds, &utc));
    assert_int_equal(utc.year, expected.tm_year + 1900);
    assert_int_equal(utc.month, expected.tm_mon + 1);
    assert_int_equal(utc.day, expected.tm_mday);
    assert_int_equal(utc.hour * 3600 + utc.minute * 60 + utc.second,
                     expected.tm_hour * 3600 + expected.tm_min * 60 + expected.tm_sec);
    assert_int_equal(rat_utc_seconds(&utc), seconds);
}

static void every_day_is_as_the_library_has_it(void **state)
{
    (void)state;
    for (uint64_t day = 0; day < 2932897; day++) /* to the end of 9999 */
        if (day < 200000 || day % 97 == 0 || day > 2932000)
            assert_as_the_library(day * DAY + day * 7919 % DAY);
}

static void the_first_and_last_seconds_hold(void **state)
{
    (void)state;
    struct rat_utc utc;
    char text[RAT_UTC_BASIC];
    assert_as_the_library(0);
    assert_as_the_library(UINT64_C(253402300799));
    assert_false(rat_utc_of(UINT64_C(253402300800), &utc));
    assert_false(rat_utc_of(UINT64_MAX, &utc));
    rat_utc_basic(UINT64_C(951868799), text);
    assert_string_equal(text, "20000229T235959Z");
    rat_utc_basic(UINT64_MAX, text);
    assert_string_equal(text, "unknown");
}

static void what_is_too_much_runs_over(void **state)
{
    (void)state;
    assert_int_equal(rat_utc_seconds(&(struct rat_utc){1969, 12, 31, 23, 59, 59}), 0);
    assert_int_equal(rat_utc_seconds(&(struct rat_utc){2026, 2, 29, 0, 0, 60}),
                     rat_utc_seconds(&(struct rat_utc){2026, 3, 1, 0, 1, 0}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_day_is_as_the_library_has_it),
        cmocka_unit_test(the_first_and_last_seconds_hold),
        cmocka_unit_test(what_is_too_much_runs_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
