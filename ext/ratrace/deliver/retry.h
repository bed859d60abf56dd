/* retry.h - what an answer means, and when to try again. Pure functions. */
#ifndef RAT_DELIVER_RETRY_H
#define RAT_DELIVER_RETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define RAT_RETRY_BASE_NS UINT64_C(1000000000)
#define RAT_RETRY_CAP_NS (UINT64_C(300) * 1000000000)
#define RAT_RETRY_AFTER_MAX_S 3600 /* a server may not ask for more */

enum rat_verdict {
    RAT_VERDICT_ACCEPTED, /* 2xx */
    RAT_VERDICT_AGAIN,    /* 408, 425, 429, 5xx: later */
    RAT_VERDICT_SENDER,   /* 3xx, 401, 403, 404, 405, 407: the address or the credentials are wrong, not the segment */
    RAT_VERDICT_POISON,   /* any other 4xx: this segment will never be taken */
};
enum rat_verdict rat_verdict(unsigned http_status);

/* Exponential backoff with full jitter: uniform in [0, min(cap, base × 2^(failures − 1))]. `failures` from 1. */
uint64_t rat_retry_delay(uint32_t failures, uint64_t base_ns, uint64_t cap_ns, uint64_t random);

/* The value of a Retry-After header: seconds, or an HTTP date in any of its three forms (RFC 9110, 5.6.7), which is
 * compared with `now`. Bounded by RAT_RETRY_AFTER_MAX_S; a date that has passed is 0. False: it is neither. */
bool rat_retry_after(const char *value, size_t length, time_t now, uint64_t *seconds);

#endif
