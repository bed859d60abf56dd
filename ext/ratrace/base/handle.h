/* handle.h - a descriptor of ours that stays open for long.
 *
 * A program that closes all descriptors closes ours, too, and may give their numbers to files of its own. So before
 * each use, and before it is closed, what is behind the number is compared with what was there when we opened it. Not
 * for eventfds and their like: all of them are one file.
 *
 * Threads: one writes, any may look.
 * Fork:    a child's handler may close it, at whatever step its parent was.
 */
#ifndef RAT_BASE_HANDLE_H
#define RAT_BASE_HANDLE_H

#include <stdatomic.h>
#include <sys/types.h>

struct rat_handle {
    _Atomic int fd; /* -1 = none */
    dev_t device;
    ino_t inode;
};

#define RAT_HANDLE_NONE ((struct rat_handle){.fd = -1})

/* Take over an open descriptor. */
void rat_handle_hold(struct rat_handle *handle, int fd);

/* The descriptor; -1 where there is none, or it is no longer ours. */
int rat_handle_fd(const struct rat_handle *handle);

/* Close it, if it still is ours. Async-signal-safe. */
void rat_handle_close(struct rat_handle *handle);

#endif
