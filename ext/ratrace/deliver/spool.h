/* spool.h - the directory of segments: what waits, what must go, where the refused lie.
 *
 *   DIR/NAME.ratrace          waits to be delivered; the oldest (by the time it was last written, then by name) first
 *   DIR/NAME.ratrace.part     is being written, or was left by a dead process for a recovery
 *   DIR/delivered/            delivered and kept, by option
 *   DIR/poison/CODE-NAME      refused for good; CODE says why: an HTTP status, or "bad" (not a segment file)
 *   DIR/.claims               who has what (claim.h)
 *
 * Bounds. Bytes and age hold for all files together. What exceeds them goes in this order: delivered ones, poison, part
 * files that nobody owns any more, then waiting ones, each oldest first; a segment somebody has claimed stays, and so
 * does a part file whose owner lives or which a recovery has locked. To try a refused one again, move it back without
 * its CODE.
 *
 * Only plain files of the directory's owner, or ours, are touched, relative to the open directory and without following
 * links. A directory that was deleted and made anew is found again.
 *
 * Memory:  a list has at most RAT_SPOOL_LIST_MAX entries; more are seen when those are gone.
 * Threads: one at a time.
 * Fork:    the child calls rat_spool_in_child and touches it no more.
 */
#ifndef RAT_DELIVER_SPOOL_H
#define RAT_DELIVER_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/handle.h"
#include "base/status.h"
#include "deliver/claim.h"

#define RAT_SPOOL_LIST_MAX 65536u
#define RAT_SPOOL_DELIVERED "delivered"
#define RAT_SPOOL_POISON "poison"

struct rat_spool {
    char dir[4096];
    struct rat_handle opened; /* the directory */
    struct rat_handle taken;  /* the segment that is open */
    struct rat_claims claims;
};

struct rat_spool_entry {
    char *name;
    uint64_t bytes;
    int64_t written_ns; /* CLOCK_REALTIME */
};

struct rat_spool_list {
    struct rat_spool_entry *entries; /* oldest first */
    size_t count;
    uint64_t bytes; /* of the entries */
};

void rat_spool_init(struct rat_spool *spool, const char *dir);
void rat_spool_close(struct rat_spool *spool);
void rat_spool_in_child(struct rat_spool *spool);

/* What waits. RAT_NOT_FOUND: there is no such directory (now). Free it in any case. */
RAT_MUST_CHECK enum rat_status rat_spool_list(struct rat_spool *spool, struct rat_spool_list *out);
void rat_spool_list_free(struct rat_spool_list *list);

/* Claim a segment and open it for reading; the descriptor stays the spool's. One at a time. RAT_BUSY: another has it; RAT_NOT_FOUND: it is gone. */
RAT_MUST_CHECK enum rat_status rat_spool_take(struct rat_spool *spool, const char *name, int *fd, uint64_t *bytes);

/* What becomes of a claimed segment; the claim goes with it. */
void rat_spool_leave(struct rat_spool *spool, const char *name);
RAT_MUST_CHECK enum rat_status rat_spool_remove(struct rat_spool *spool, const char *name);
RAT_MUST_CHECK enum rat_status rat_spool_keep(struct rat_spool *spool, const char *name);
RAT_MUST_CHECK enum rat_status rat_spool_poison(struct rat_spool *spool, const char *name, const char *code);

struct rat_spool_bounds {
    uint64_t bytes;  /* 0 = none */
    uint64_t age_ns; /* 0 = none */
};

struct rat_spool_drops {
    uint64_t waiting[2], waiting_bytes[2]; /* by enum rat_spool_bound: undelivered, part files too, which is a loss */
    uint64_t others;                       /* delivered or poison files */
};
enum rat_spool_bound { RAT_SPOOL_BY_BYTES, RAT_SPOOL_BY_AGE };

/* Remove what exceeds the bounds, adding to `drops`. */
RAT_MUST_CHECK enum rat_status rat_spool_retain(struct rat_spool *spool, const struct rat_spool_bounds *bounds,
                                                int64_t now_ns, struct rat_spool_drops *drops);

#endif
