#include "deliver/retry.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/utc.h"

enum rat_verdict rat_verdict(unsigned status)
{
    switch (status) {
    case 200 ... 299:
        return RAT_VERDICT_ACCEPTED;
    case 300 ... 399:
    case 401:
    case 403:
    case 404:
    case 405:
    case 407:
        return RAT_VERDICT_SENDER;
    case 408:
    case 425:
    case 429:
        return RAT_VERDICT_AGAIN;
    case 400:
    case 402:
    case 406:
    case 409 ... 424:
    case 426 ... 428:
    case 430 ... 499:
        return RAT_VERDICT_POISON;
    default:
        return RAT_VERDICT_AGAIN; /* 5xx, and what no server should say */
    }
}

uint64_t rat_retry_delay(uint32_t failures, uint64_t base_ns, uint64_t cap_ns, uint64_t random)
{
    uint64_t most = base_ns < cap_ns ? base_ns : cap_ns;
    for (uint32_t i = 1; i < failures && most < cap_ns; i++)
        most = most > cap_ns / 2 ? cap_ns : most * 2;
    return most == UINT64_MAX ? random : random % (most + 1);
}

static bool is_month(const char *name, int *month)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const char *found = strlen(name) == 3 ? strstr(months, name) : NULL;
    if (found == NULL || (found - months) % 3 != 0)
        return false;
    *month = (int)(found - months) / 3;
    return true;
}

/* sscanf does not depend on the locale here, as strptime would. */
static bool parse_date(const char *text, time_t *out)
{
    struct tm date = {0};
    char month[4] = "";
    int year = 0, end = 0;
    bool known = sscanf(text, "%*3[A-Za-z], %2d %3[A-Za-z] %4d %2d:%2d:%2d GMT%n", &date.tm_mday, month, &year,
                        &date.tm_hour, &date.tm_min, &date.tm_sec, &end) == 6 && end > 0;
    if (!known) {
        known = sscanf(text, "%*9[A-Za-z], %2d-%3[A-Za-z]-%2d %2d:%2d:%2d GMT%n", &date.tm_mday, month, &year,
                       &date.tm_hour, &date.tm_min, &date.tm_sec, &end) == 6 && end > 0;
        year += year < 70 ? 2000 : 1900;
    }
    if (!known)
        known = sscanf(text, "%*3[A-Za-z] %3[A-Za-z] %2d %2d:%2d:%2d %4d%n", month, &date.tm_mday, &date.tm_hour,
                       &date.tm_min, &date.tm_sec, &year, &end) == 6 && end > 0;
    if (!known || text[end] != '\0' || !is_month(month, &date.tm_mon))
        return false;
    if (date.tm_mday < 1 || date.tm_mday > 31 || date.tm_hour < 0 || date.tm_hour > 23 || date.tm_min < 0 ||
        date.tm_min > 59 || date.tm_sec < 0 || date.tm_sec > 60)
        return false;
    const struct rat_utc utc = {
        .year = (uint16_t)(year > 0 ? year : 0),
        .month = (uint8_t)(date.tm_mon + 1),
        .day = (uint8_t)date.tm_mday,
        .hour = (uint8_t)date.tm_hour,
        .minute = (uint8_t)date.tm_min,
        .second = (uint8_t)date.tm_sec,
    };
    *out = (time_t)rat_utc_seconds(&utc);
    return true;
}

bool rat_retry_after(const char *value, size_t length, time_t now, uint64_t *seconds)
{
    char text[64];
    while (length > 0 && isspace((unsigned char)*value))
        value++, length--;
    while (length > 0 && isspace((unsigned char)value[length - 1]))
        length--;
    if (length == 0 || length >= sizeof text)
        return false;
    memcpy(text, value, length);
    text[length] = '\0';
    if (strspn(text, "0123456789") == length) {
        uint64_t number = 0;
        for (size_t i = 0; i < length && number <= RAT_RETRY_AFTER_MAX_S; i++)
            number = number * 10 + (uint64_t)(text[i] - '0');
        *seconds = number < RAT_RETRY_AFTER_MAX_S ? number : RAT_RETRY_AFTER_MAX_S;
        return true;
    }
    time_t date;
    if (!parse_date(text, &date))
        return false;
    uint64_t ahead = date > now ? (uint64_t)(date - now) : 0;
    *seconds = ahead < RAT_RETRY_AFTER_MAX_S ? ahead : RAT_RETRY_AFTER_MAX_S;
    return true;
}
