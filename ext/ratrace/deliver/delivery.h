/* delivery.h - one attempt at one segment, and what follows from its outcome.
 *
 * accepted at every step      remove it, or move it to delivered/
 * refused for good (4xx)      move it to poison/
 * anything else               leave it, wait (exponential backoff with full jitter, at least Retry-After), try again
 *
 * Nothing blocks the rest. An attempt that failed after the request had gone out moves the cursor, so the next one is
 * for the segment behind it. A segment that goes on failing while others are accepted in between is poison after
 * RAT_DELIVERY_CHANCES times; in an outage nothing is accepted, and so nothing becomes poison by it. The same holds for
 * answers about the sender (401, 403, 404, a redirect): as long as no segment is accepted, it is the configuration.
 *
 * Threads: the shipper's; the counts are copied under its lock.
 */
#ifndef RAT_DELIVER_DELIVERY_H
#define RAT_DELIVER_DELIVERY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "deliver/http.h"
#include "deliver/retry.h"
#include "deliver/spool.h"
#include "deliver/target.h"

#define RAT_DELIVERY_CHANCES 8
#define RAT_DELIVERY_SUSPECTS 16

struct rat_delivery_counts {
    uint64_t attempts, delivered, delivered_bytes, finalized;
    uint64_t retried;                      /* attempts that failed and will be made again */
    uint64_t failures[RAT_HTTP_FAILURES];  /* by cause; 0: by an HTTP status */
    uint64_t statuses[6];                  /* answers by hundreds: [4] = 4xx */
    uint64_t poisoned;
    uint64_t busy;                         /* claimed by another process when we came */
    uint32_t failures_in_row;
    unsigned last_status;
    uint64_t last_failure_ns, last_delivery_ns; /* CLOCK_REALTIME */
    char last_error[RAT_HTTP_TEXT_MAX];
};

struct rat_delivery_suspect {
    uint64_t name_hash, delivered_at; /* how much had been delivered when it failed last */
    uint32_t failures;
};

/* The caller sets the fields down to `now`; the rest starts as zeros. */
struct rat_delivery {
    struct rat_spool *spool;
    const struct rat_target *target;
    struct rat_http *http;
    bool keep;
    double time_scale;                 /* 1; in tests, how much faster than the clock waits go by */
    const _Atomic uint32_t *cancel;
    void (*report)(void *user, bool warning, const char *line); /* may be NULL */
    void *user;
    void (*changed)(struct rat_delivery *delivery); /* the counts, before something that takes long; may be NULL */

    uint64_t random;
    uint64_t not_before_ns;            /* CLOCK_MONOTONIC: no attempt earlier */
    bool told_to_wait;                 /* ... because the server said so */
    char cursor[256];                  /* begin behind this name; "" = at the oldest */
    int64_t cursor_ns;
    bool told;                         /* that it fails */
    struct rat_delivery_suspect suspects[RAT_DELIVERY_SUSPECTS];
    struct rat_delivery_counts counts;
};

enum rat_delivery_result {
    RAT_DELIVERY_DONE,    /* it no longer waits */
    RAT_DELIVERY_BUSY,    /* another process has it */
    RAT_DELIVERY_FAILED,  /* it waits; not_before_ns says until when */
    RAT_DELIVERY_STOPPED, /* it waits; we were asked to stop */
};

enum rat_delivery_result rat_delivery_try(struct rat_delivery *delivery, const struct rat_spool_entry *entry);

/* Where to begin in `list`: behind the cursor, or at 0. */
size_t rat_delivery_first(const struct rat_delivery *delivery, const struct rat_spool_list *list);

/* A line for a person. */
void rat_delivery_say(const struct rat_delivery *delivery, bool warning, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
