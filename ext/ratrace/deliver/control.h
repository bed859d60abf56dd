/* control.h - the socket by which `ratrace ctl` speaks to a process: one connection, one request line, one answer.
 *
 * Where.   DIR/ratrace-PID.sock, 0600. It is bound under another name and renamed once it listens, so a name that
 *          answers nobody is a dead process's: such ones of ours are removed, or replaced. An address takes 107 bytes; a
 *          longer path is reached through the directory's descriptor in /proc/self/fd.
 * Trust.   Only this user's processes are heard (SO_PEERCRED); a request has RAT_CONTROL_REQUEST_MAX bytes and
 *          RAT_CONTROL_PATIENCE_MS to come, an answer as long to be taken. Whoever does worse is hung up on.
 *
 * Memory:  the struct is the caller's.
 * Threads: one at a time.
 * Fork:    the child calls rat_control_abandon; the socket stays the parent's.
 */
#ifndef RAT_DELIVER_CONTROL_H
#define RAT_DELIVER_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/handle.h"
#include "base/status.h"

#define RAT_CONTROL_REQUEST_MAX 64
#define RAT_CONTROL_PATIENCE_MS 1000

struct rat_control {
    int fd; /* -1 = none */
    struct rat_handle client;
    dev_t device, file_device;
    ino_t inode, file_inode;
    char path[1200];
};

/* Listen in `dir`. On failure `why` says what to do, on one line. RAT_BUSY: another process of this pid answers there
 * (of another pid namespace). */
RAT_MUST_CHECK enum rat_status rat_control_open(struct rat_control *control, const char *dir, char *why,
                                                size_t why_length);

/* Wait at most `timeout_ms`, or until a signal, for a request. RAT_OK: answer it. RAT_END: none. RAT_IO: the host closed
 * the socket; give up. Blocks: without the GVL. */
RAT_MUST_CHECK enum rat_status rat_control_wait(struct rat_control *control, int timeout_ms,
                                                char request[RAT_CONTROL_REQUEST_MAX]);

/* Answer and hang up. Blocks for at most RAT_CONTROL_PATIENCE_MS. */
void rat_control_reply(struct rat_control *control, const char *bytes, size_t length);

/* Hang up and remove the name, if it still is ours. */
void rat_control_close(struct rat_control *control);

/* In a forked child: close what was inherited. */
void rat_control_abandon(struct rat_control *control);

#endif
