/* live_view.h - somebody else's live file, read with distrust.
 *
 * The file is copied range by range into private memory of its size, never mapped: whoever truncates a mapped file, or
 * fills the tmpfs it has holes in, ends the reader by SIGBUS, and the reader may be a host's own process. Every field
 * is checked against the file's length before it is used; ids and texts of the dictionary are put right in the copy.
 *
 * Memory:  address space of the file's length, and of it what was read.
 * Threads: one at a time.
 */
#ifndef RAT_DELIVER_LIVE_VIEW_H
#define RAT_DELIVER_LIVE_VIEW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "record/dictionary.h"
#include "record/layout.h"

struct rat_live_view {
    int fd;
    uint8_t *memory;
    uint64_t length;
    struct rat_live_head *head; /* in `memory`; this copy may be changed */
    bool placed; /* its head says which directory it writes to; told of a file that could not be opened, too */
};

/* Open `name` in the directory `dir_fd`. Not for files of this process (rat_live_is_own).
 *
 * out_dir, if not NULL: only a session that writes there; else RAT_NOT_FOUND, as when the file is gone.
 * take: lock it for a recovery. RAT_BUSY: its owner lives, or another recovery is at it.
 * RAT_TORN: it was never finished, and nobody holds it. RAT_CORRUPT, RAT_UNSUPPORTED (another version), RAT_ACCESS
 * (not ours, not a plain file), RAT_NO_MEMORY, RAT_IO: of a session that writes to out_dir, or may, where not `placed`. */
RAT_MUST_CHECK enum rat_status rat_live_view_open(int dir_fd, const char *name, const char *out_dir, bool take,
                                                  struct rat_live_view *out);
void rat_live_view_close(struct rat_live_view *view);

/* A lane's head, index < RAT_LANES. */
const struct rat_lane_head *rat_live_view_lane(const struct rat_live_view *view, uint32_t index);

/* The first `words` words of a slot; at most slot_bytes. */
RAT_MUST_CHECK enum rat_status rat_live_view_slot(const struct rat_live_view *view, uint32_t lane, uint32_t slot,
                                                  uint32_t words, const uint64_t **out);

/* ---------------------------------------------------------------- of a living process
 *
 * Its producer stores and its serializer flips while we copy, and neither may notice: nothing is locked, stored or mapped
 * (a read of a mapped hole would make a page). So a copy is judged afterwards: the slot's words W and G (lane.h) are read
 * again, and where W has begun another interval, or G has given the slot out for one, the copy is thrown away. W is read
 * twice before as well, and the lower cursor counts, because a copy by the kernel is not promised to be of one piece. */

struct rat_live_interval {
    uint64_t sequence; /* 0 = the slot was never used */
    uint32_t words, events; /* published when it was looked at */
    uint64_t base_ticks, opened_stored;
    struct rat_anchor opened;
    uint64_t *at; /* the copy, as far as it was fetched; the caller may write to it */
};

/* What a slot holds. Nothing is copied of its words. RAT_BUSY: it changed under our hands, ask again. RAT_CORRUPT. */
RAT_MUST_CHECK enum rat_status rat_live_view_peek(struct rat_live_view *view, uint32_t lane, uint32_t slot,
                                                  struct rat_live_interval *out);

/* The same with its words from `from` on, of interval `sequence`. RAT_BUSY: it holds another one by now. */
RAT_MUST_CHECK enum rat_status rat_live_view_interval(struct rat_live_view *view, uint32_t lane, uint32_t slot,
                                                      uint64_t sequence, uint32_t from, struct rat_live_interval *out);

/* Fetch the lanes' heads again. */
RAT_MUST_CHECK enum rat_status rat_live_view_refresh(struct rat_live_view *view);

/* Does its owner live, and is the file still there? Afterwards nothing is added to it. */
bool rat_live_view_is_live(const struct rat_live_view *view);

/* The process that owns this live file, readable or not; 0: none that lives. Not for a file of ours
 * (rat_live_is_own): closing any descriptor of that gives up our lock. */
pid_t rat_live_view_holder(int dir_fd, const char *name);

/* The dictionary as far as it was published, every reference in it valid. */
RAT_MUST_CHECK enum rat_status rat_live_view_dict(const struct rat_live_view *view, struct rat_dict_view *out);

/* Was it written before the machine was last started? Then its pages may be of any age. */
bool rat_live_view_is_other_boot(const struct rat_live_view *view);

#endif
