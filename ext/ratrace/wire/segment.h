/* segment.h - segment files: appended to by one writer, read by anybody, whole, torn or damaged.
 *
 * Writer. The file is created O_EXCL and O_NOFOLLOW, 0600, under its name plus ".part", and locked (fcntl) for as long
 * as its owner lives. Each chunk goes in with one append; a short or failed write is cut off again, so the file always
 * ends at a chunk's end. rat_segment_publish renames it to its name.
 *
 * Reader. Chunk by chunk in file order; trusts nothing. A torn tail ends the stream cleanly, with the bytes left;
 * damage in the middle is stepped over to the next sync marker whose header check holds, with the bytes skipped.
 *
 * Locks are POSIX record locks: they survive until the last thread of the owner, are not inherited by a child, and work
 * across pid namespaces; but closing any descriptor of the file in the owner drops them. So all functions here know
 * this process's own files (wire/own_files.h) and never open one twice. Nobody else may either.
 *
 * Threads: one at a time for a writer or reader; is_owned and open may run beside them.
 * Fork:    the child closes the descriptor (rat_segment_close) and forgets the writer; it holds no lock.
 */
#ifndef RAT_WIRE_SEGMENT_H
#define RAT_WIRE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buffer.h"
#include "base/status.h"
#include "wire/decoder.h"

#define RAT_SEGMENT_SUFFIX ".ratrace"
#define RAT_SEGMENT_PART ".part" /* behind the suffix, until published */

struct rat_segment_writer {
    int fd;          /* -1 = none */
    bool ragged;     /* a failed append left bytes behind `length` that could not be cut off yet */
    uint64_t length; /* bytes of whole chunks */
    char path[4096]; /* with ".part"; without, once published */
};

/* The system calls a writer makes; a test hands over others. Set before any writer is used. */
struct rat_file_ops {
    int (*openat)(int dir, const char *name, int flags, mode_t mode);
    int (*lock)(int fd); /* F_SETLK, F_WRLCK */
    ssize_t (*pwrite)(int fd, const void *bytes, size_t length, off_t at);
    int (*ftruncate)(int fd, off_t length);
    int (*fdatasync)(int fd);
    int (*renameat2)(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
    int (*linkat)(int from_dir, const char *from, int to_dir, const char *to, int flags);
    int (*unlinkat)(int dir, const char *name, int flags);
};
extern const struct rat_file_ops rat_file_ops_libc;
extern const struct rat_file_ops *rat_file_ops; /* = &rat_file_ops_libc */

/* Create DIR/NAME.part and lock it. RAT_EXISTS, RAT_ACCESS, RAT_NOT_FOUND, RAT_NO_SPACE, RAT_IO. */
RAT_MUST_CHECK enum rat_status rat_segment_create(struct rat_segment_writer *writer, const char *dir, const char *name);

/* Take over a dead owner's part file: lock it, find its last whole chunk, cut what is behind. RAT_BUSY if it lives. */
RAT_MUST_CHECK enum rat_status rat_segment_adopt(struct rat_segment_writer *writer, const char *path);

/* Remove a dead owner's part file, under its lock. RAT_BUSY if it lives. */
RAT_MUST_CHECK enum rat_status rat_segment_discard(const char *path);

/* Append whole chunks. On failure the file is cut back to what it was. */
RAT_MUST_CHECK enum rat_status rat_segment_append(struct rat_segment_writer *writer, const uint8_t *bytes,
                                                  size_t length);

/* fdatasync, for those who asked for it. */
RAT_MUST_CHECK enum rat_status rat_segment_sync(struct rat_segment_writer *writer);

/* Rename to the final name (an existing file of that name is not replaced: RAT_EXISTS) and close. On failure the
 * writer stays open. RAT_NOT_FOUND: the path no longer leads to this file. */
RAT_MUST_CHECK enum rat_status rat_segment_publish(struct rat_segment_writer *writer);

/* Close without renaming; the part file stays. */
void rat_segment_close(struct rat_segment_writer *writer);

/* Is the owner of this part file alive? Never opens a file this process itself has locked. */
bool rat_segment_is_owned(const char *path);

enum rat_read_kind {
    RAT_READ_CHUNK,      /* header (and body on request) */
    RAT_READ_UNREADABLE, /* header holds, body needs an unknown feature: totals count, events do not */
    RAT_READ_SKIPPED,    /* bytes stepped over: damage */
    RAT_READ_TORN,       /* the last bytes are the beginning of a chunk */
    RAT_READ_END,
};

struct rat_read {
    enum rat_read_kind kind;
    uint64_t at;     /* offset in the file */
    uint64_t length; /* bytes of the entry (its outer tag included where it is intact), skipped or torn */
    struct rat_chunk_header header;
};

struct rat_segment_reader;

/* Map `path` for reading, a part file's content is copied instead (its owner may cut it); or read from memory, which
 * must outlive the reader. What a header's `body` points to lives as long as the reader. */
RAT_MUST_CHECK enum rat_status rat_segment_open(const char *path, struct rat_segment_reader **out);
RAT_MUST_CHECK enum rat_status rat_segment_open_bytes(const uint8_t *bytes, size_t length,
                                                      struct rat_segment_reader **out);
void rat_segment_reader_free(struct rat_segment_reader *reader);

/* The next thing in the file. After RAT_READ_TORN comes RAT_READ_END. */
void rat_segment_next(struct rat_segment_reader *reader, struct rat_read *out);

#endif
