/* shipper.h - a thread that delivers the segments of one directory, and keeps the directory within its bounds.
 *
 * The same in a service (beside the session that writes there) and in `ratrace ship`; any number of them may work on one
 * directory (claim.h). It delivers what is there, oldest first, looks again every second, finishes what dead processes
 * left (recovery.h), and holds the bounds in an outage, too. Without a target it only holds the bounds.
 *
 * Stop. What waits is tried once more, oldest first, until the first failure or the deadline; what is under way then is
 * broken off. Whatever was not delivered stays for the next shipper. A thread that cannot be stopped in time (it waits
 * for a disk or a resolver) is left behind, with its memory.
 *
 * Memory:  options and all their strings stay the caller's until stop or for ever, as stop says.
 * Threads: start under the GVL or its like, stop by one thread and without the GVL, stats by any.
 * Fork:    pthread_atfork's child handler calls rat_shipper_in_child: it closes the inherited descriptors, so that no
 *          claim and no connection outlives its owner, and nothing else. The child forgets the pointer and may start a
 *          shipper of its own. No lock of the parent is touched, no handle of libcurl, no memory freed.
 */
#ifndef RAT_DELIVER_SHIPPER_H
#define RAT_DELIVER_SHIPPER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "deliver/delivery.h"
#include "deliver/spool.h"
#include "deliver/target.h"

#define RAT_SHIP_DEADLINE_NS UINT64_C(1000000000)
#define RAT_SHIP_SPOOL_BYTES (UINT64_C(1) << 30)
#define RAT_SHIP_TRIES 5 /* failures in a row after which `once` gives up */

struct rat_ship_options {
    const char *dir;               /* may not exist yet */
    const char *live_dir;          /* for the recovery, as rat_live_dir takes it */
    bool has_target;
    struct rat_target_options target;
    const char *ca_file;           /* NULL = the system's */
    const char *proxy;             /* NULL = none */
    const char *no_proxy;
    struct rat_spool_bounds bounds;
    bool keep;                     /* delivered segments go to delivered/ instead of being removed */
    bool once;                     /* end when nothing waits, or after RAT_SHIP_TRIES failures in a row */
    bool polite;                   /* at a lower priority than the process */
    uint64_t delay_ns;             /* before the first look; a stop before it is over delivers nothing */
    uint64_t connect_ns, total_ns, stall_ns; /* 0 = 10 s, 600 s, 30 s */
    uint64_t grace_ns;             /* after the deadline, for what cannot be broken off at once; 0 = 0.5 s */
    double time_scale;             /* 0 = 1; tests: all waits of our own are divided by it, no time limit is */
    void (*report)(void *user, bool warning, const char *line); /* on the shipper's thread; may be NULL */
    void *user;
};

struct rat_shipper;

/* RAT_INVALID for options that do not do, RAT_UNSUPPORTED without libcurl, RAT_THREAD, RAT_NO_MEMORY; `why` is a line
 * for a person. */
RAT_MUST_CHECK enum rat_status rat_shipper_start(const struct rat_ship_options *options, struct rat_shipper **out,
                                                 char *why, size_t why_length);

struct rat_ship_stats {
    bool running;
    struct rat_delivery_counts delivery;
    struct rat_spool_drops drops;
    uint64_t waiting, waiting_bytes;            /* segments in the directory when last looked at */
    uint64_t recovered_segments, recovered_events;
    uint64_t next_try_ns;                       /* from now; 0 = not put off */
};
void rat_shipper_stats(struct rat_shipper *shipper, struct rat_ship_stats *out);

/* End within the deadline. RAT_OK: ended and freed. RAT_BUSY: left behind, and with it all that the options point to.
 * `last` (may be NULL) gets the last numbers. */
enum rat_status rat_shipper_stop(struct rat_shipper *shipper, uint64_t deadline_ns, struct rat_ship_stats *last);

void rat_shipper_in_child(struct rat_shipper *shipper);

#endif
