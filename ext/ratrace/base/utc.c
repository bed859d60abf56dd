#include "base/utc.h"

#include <string.h>

#define DAY UINT64_C(86400)

static bool is_leap(uint32_t year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

/* Days from 1970 to the first of January. */
static uint64_t days_to_year(uint32_t year)
{
    uint32_t before = year - 1;
    return UINT64_C(365) * (year - 1970) + (before / 4 - 1969 / 4) - (before / 100 - 1969 / 100) +
           (before / 400 - 1969 / 400);
}

/* Days from the first of January to the first of a month. */
static uint32_t days_to_month(uint32_t year, uint32_t month)
{
    static const uint16_t before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    return before[month - 1] + (month > 2 && is_leap(year));
}

bool rat_utc_of(uint64_t seconds, struct rat_utc *out)
{
    uint64_t days = seconds / DAY;
    if (days >= days_to_year(10000))
        return false;
    uint32_t year = 1970 + (uint32_t)days / 366, month = 12, second = (uint32_t)(seconds % DAY);
    while (days_to_year(year + 1) <= days)
        year++;
    uint32_t day = (uint32_t)(days - days_to_year(year));
    while (days_to_month(year, month) > day)
        month--;
    *out = (struct rat_utc){
        .year = (uint16_t)year,
        .month = (uint8_t)month,
        .day = (uint8_t)(day - days_to_month(year, month) + 1),
        .hour = (uint8_t)(second / 3600),
        .minute = (uint8_t)(second / 60 % 60),
        .second = (uint8_t)(second % 60),
    };
    return true;
}

uint64_t rat_utc_seconds(const struct rat_utc *utc)
{
    if (utc->year < 1970)
        return 0;
    uint64_t days = days_to_year(utc->year) + days_to_month(utc->year, utc->month) + utc->day - 1u;
    return days * DAY + utc->hour * UINT64_C(3600) + utc->minute * UINT64_C(60) + utc->second;
}

static char *put(char *to, uint32_t number, int digits)
{
    for (int i = digits - 1; i >= 0; i--, number /= 10)
        to[i] = (char)('0' + number % 10);
    return to + digits;
}

void rat_utc_basic(uint64_t seconds, char out[RAT_UTC_BASIC])
{
    struct rat_utc utc;
    if (!rat_utc_of(seconds, &utc)) {
        strcpy(out, "unknown");
        return;
    }
    char *to = put(put(put(out, utc.year, 4), utc.month, 2), utc.day, 2);
    *to++ = 'T';
    to = put(put(put(to, utc.hour, 2), utc.minute, 2), utc.second, 2);
    *to++ = 'Z';
    *to = '\0';
}
