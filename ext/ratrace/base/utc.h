/* utc.h - dates from seconds since 1970 and back, without the C library's time zones.
 *
 * gmtime_r and timegm take the lock of the time zone, which no fork gives back to the child: forked while a thread of
 * ours is inside, its first localtime would wait for ever.
 *
 * Threads: any.
 */
#ifndef RAT_BASE_UTC_H
#define RAT_BASE_UTC_H

#include <stdbool.h>
#include <stdint.h>

struct rat_utc {
    uint16_t year; /* 1970..9999 */
    uint8_t month, day, hour, minute, second;
};

/* False beyond the year 9999. */
bool rat_utc_of(uint64_t seconds, struct rat_utc *out);

/* A day or second too many is one of the next month or minute; `month` is 1..12, and years before 1970 are 0 s. */
uint64_t rat_utc_seconds(const struct rat_utc *utc);

/* "20260131T235959Z"; "unknown" beyond the year 9999. */
#define RAT_UTC_BASIC 17
void rat_utc_basic(uint64_t seconds, char out[RAT_UTC_BASIC]);

#endif
