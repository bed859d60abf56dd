/* own_files.h - the part files this process holds locked, so that nobody opens one twice.
 *
 * Closing any descriptor of a file drops all POSIX record locks the process has on it. Whoever wants to read or ask
 * about a part file asks here first.
 *
 * Memory:  a fixed table.
 * Threads: any; a spin lock, held for a few instructions.
 * Fork:    a child holds none of its parent's locks; entries carry the pid, and so does the spin lock, so the child
 *          need do nothing, wherever the parent was.
 */
#ifndef RAT_WIRE_OWN_FILES_H
#define RAT_WIRE_OWN_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

/* `fd` is about to be locked by us. RAT_BUSY: the file is ours already, by another descriptor. RAT_NO_MEMORY: full. */
RAT_MUST_CHECK enum rat_status rat_own_file_add(int fd);

/* Close `fd`, whatever file it is: later, if somebody reads through it; never, if the file is ours by another
 * descriptor (that is a lost race with another thread, and a leaked descriptor is the lesser harm). */
void rat_own_file_close(int fd);

/* Forget `fd` without closing it: the host closed our descriptor, and the number may be its own by now. */
void rat_own_file_remove(int fd);

bool rat_own_file_is(const struct stat *file);

/* Copy our own file's content through the descriptor we have: RAT_NOT_FOUND if it is not ours. `*out` by malloc. */
RAT_MUST_CHECK enum rat_status rat_own_file_read(const struct stat *file, uint8_t **out, size_t *length);

/* Copy a file's content. RAT_TOO_BIG past 1 GiB. `*out` by malloc. */
RAT_MUST_CHECK enum rat_status rat_file_read(int fd, uint8_t **out, size_t *length);

#endif
