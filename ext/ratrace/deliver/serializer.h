/* serializer.h - our own thread: flips lanes, encodes, appends, rotates segments. Design notes in serializer.c.
 *
 * Memory:  belongs to the session that embeds it.
 * Threads: start, add_lane, ask and join by the session's callers; everything below "the thread's own" by the
 *          serializer thread alone; `lock` covers what is marked so.
 * Fork:    the child has no such thread: rat_serializer_abandon.
 */
#ifndef RAT_DELIVER_SERIALIZER_H
#define RAT_DELIVER_SERIALIZER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "deliver/beat.h"
#include "deliver/outlet.h"
#include "deliver/serial_lane.h"

enum rat_ask { RAT_ASK_NOTHING, RAT_ASK_FLUSH, RAT_ASK_STOP };

struct rat_serializer {
    struct rat_outlet outlet;
    const uint8_t *mapping; /* the dictionary is read from there */
    uint64_t mapped;
    struct rat_serial_lane lanes[RAT_LANES];
    enum rat_fence_kind fence;
    uint64_t period_ns, poll_ns, segment_bytes, segment_age_ns;
    bool debug;
    bool (*hold)(void *owner); /* once a period: is the live file still ours? May be NULL */
    void *owner;
    struct rat_beat *beat; /* may be NULL */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    enum rat_ask ask;                      /* lock */
    uint64_t flushes_asked, flushes_done;  /* lock */
    enum rat_status flush_status;          /* lock: of the newest flush */
    bool has_ended;                        /* lock */
    enum rat_status stop_status;           /* after join */

    /* the thread's own */
    uint64_t next_period_ns, next_beat_ns;
    uint32_t first_lane;     /* whose chunk the outlet keeps; it is written before any other */
    enum rat_status failure; /* of the newest write; its drains are tried again next period */
    struct rat_serial_counts {
        uint64_t flips, giveups, written_events, lost_events, raw_bytes;
        struct rat_outlet_counts outlet;
        enum rat_status failure;
        char part[4096];
    } counts, shown; /* the thread's own; lock: the copy for stats */
    _Atomic uint32_t working; /* 1 = private memory may be half changed: a child forked now may not free it */
};

/* Prepare; the caller has set the fields above `thread`. */
RAT_MUST_CHECK enum rat_status rat_serializer_start(struct rat_serializer *serializer);

/* A lane whose consumer rat_lane_open has filled in. Its producer may record at once. */
void rat_serializer_add_lane(struct rat_serializer *serializer, uint32_t index);

/* As rat_session_flush. */
RAT_MUST_CHECK enum rat_status rat_serializer_flush(struct rat_serializer *serializer);

extern uint64_t rat_serializer_stop_ns; /* 10 s; a test may set another */

/* No producer comes any more: drain, close, publish, end the thread. RAT_OK: all is in published segments. RAT_LATE: it
 * waits for the disk, and is left behind with all it works on. */
RAT_MUST_CHECK enum rat_status rat_serializer_stop(struct rat_serializer *serializer);

/* In a forked child: close descriptors, free what is certainly whole. */
void rat_serializer_abandon(struct rat_serializer *serializer);

/* A line on stderr, if the session was opened for that. */
void rat_serializer_debug(const struct rat_serializer *serializer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Start a thread with all signals blocked. */
RAT_MUST_CHECK enum rat_status rat_serializer_spawn(pthread_t *thread, void *(*body)(void *), void *argument);

#endif
