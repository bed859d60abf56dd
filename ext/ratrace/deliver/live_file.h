/* live_file.h - the memory of this process's session (record/layout.h), in a file that outlives the process.
 *
 * Where.   $RATRACE_LIVE_DIR, else /dev/shm/ratrace-<euid>: on tmpfs only, because a mapped file on disk faults the
 *          producer again at every writeback. The directory is 0700, ours, and no symlink. Where there is none, or no
 *          room in it, the memory is anonymous, the reason is kept, and nothing survives a kill.
 * Room.    The file has its full size from the start and no pages; each area is allocated (fallocate) before it is
 *          touched, so a full tmpfs is a refusal here and not a SIGBUS in the host.
 * Life.    The owner holds a POSIX record lock from before the magic is stored until its last thread is gone. Closing
 *          any descriptor of the file in this process would drop it: rat_live_is_own says which files not to open.
 *
 * Memory:  the mapping is this module's, MADV_DONTFORK.
 * Threads: create, publish, close by the session's opener; reserve and hold by one thread at a time each.
 * Fork:    the child calls rat_live_abandon; the mapping is not there.
 */
#ifndef RAT_DELIVER_LIVE_FILE_H
#define RAT_DELIVER_LIVE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "record/layout.h"

#define RAT_LIVE_SUFFIX ".live"
#define RAT_LIVE_PATH_MAX 1200

struct rat_live_file {
    uint8_t *mapping; /* starts with the struct rat_live_head */
    uint64_t length;
    _Atomic int fd; /* -1 = anonymous memory; changed by rat_live_hold beside rat_live_reserve */
    dev_t device;
    ino_t inode;
    char path[RAT_LIVE_PATH_MAX]; /* "" = anonymous memory */
    char why_anonymous[RAT_LIVE_PATH_MAX + 64];
    bool shared; /* somebody may still store into it: closing leaves it mapped */
};

/* The directory: `wanted`; "" = the default; NULL = $RATRACE_LIVE_DIR, else the default. While this reads the
 * environment nobody may change it, so in a host NULL is for who holds the GVL. RAT_TOO_BIG. */
RAT_MUST_CHECK enum rat_status rat_live_dir(const char *wanted, char *out, size_t length);

/* Open `dir` and check that it is a directory of ours, closed to others; with `create` it is made. The descriptor, or
 * -1 and what is wrong in `why`. */
int rat_live_dir_open(const char *dir, bool create, char *why, size_t why_length);

/* A session's identity as this process and machine give it: ids, sync marker, boot id, pids, host. Zeroes the rest. */
void rat_live_identify(struct rat_live_head *head);

/* Map the memory of a session. `template` is the head to be: identified, slot_bytes set; sizes and offsets are added.
 * Head, lane heads and the main lane's slots are reserved. RAT_NO_MEMORY, or RAT_INVALID for slot_bytes out of range. */
RAT_MUST_CHECK enum rat_status rat_live_create(struct rat_live_file *live, const char *dir,
                                               const struct rat_live_head *template);

/* All is in place: store the magic. From now on a recoverer believes the file. */
void rat_live_publish(struct rat_live_file *live);

/* Allocate [at, at + length) in the file; `owner` is the struct rat_live_file (a rat_reserve). RAT_NO_SPACE. */
RAT_MUST_CHECK enum rat_status rat_live_reserve(void *owner, uint64_t at, uint64_t length);

/* Slots of lane `index`: 2 × slot_bytes, reserved by this call. */
RAT_MUST_CHECK enum rat_status rat_live_reserve_slots(struct rat_live_file *live, uint32_t index, uint64_t **out);

/* Is the descriptor still ours, and the lock with it? Programs that close all descriptors take both away; then the
 * file is opened and locked again. False: the file is gone, the memory is as good as anonymous. */
bool rat_live_hold(struct rat_live_file *live);

/* Unmap and close; `keep` leaves the file to a recovery. */
void rat_live_close(struct rat_live_file *live, bool keep);

/* In a forked child: close the inherited descriptor, if it still is that file. */
void rat_live_abandon(struct rat_live_file *live);

/* Does this process own the live file named `name` ("<32 hex>.live")? Such a file may not be opened. Any thread. */
bool rat_live_is_own(const char *name);

/* "<32 hex>.live" of a session. */
void rat_live_name(uint64_t session_hi, uint64_t session_lo, char out[40]);

static inline struct rat_live_head *rat_live_head(const struct rat_live_file *live)
{
    return (struct rat_live_head *)(void *)live->mapping;
}

#endif
