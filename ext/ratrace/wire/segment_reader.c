/* segment_reader.c - one chunk after another from bytes that may be torn, damaged or forged.
 *
 * In order: tag, length, and a chunk whose sync marker, header check and size hold. Where that fails, the reader scans
 * for the next marker whose header holds. Text in a stored body may contain markers and whole chunks; they are never
 * looked at while the chunk around them holds, and when it does not, chunks that carry the marker of the session read
 * last are preferred, because whoever wrote the text could not know its 8 random bytes.
 *
 * A chunk whose header holds says how long it is. If nothing stands behind it and its body check fails, too, bytes were
 * lost inside it, and the next chunk begins earlier than it says: then its body is scanned.
 *
 * Work is bounded: checks cost a few times the file's length at most; a file made to need more is given up as damage.
 */
#include "wire/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "wire/own_files.h"

#define MARK "\x0A\x10" RAT_SYNC_CONSTANT
#define MARK_BYTES 10u /* tag, length, constant half of the sync */
#define SYNC_BYTES 18u /* ... and the session's half */
#define SIZE_AT 19u    /* the size field's value: behind sync and one tag byte */
#define OUTER_BYTES_MAX 6u

struct rat_segment_reader {
    const uint8_t *bytes;
    size_t size;
    size_t at;
    uint64_t work; /* bytes that checks may still read */
    bool has_mark;
    uint8_t mark[SYNC_BYTES]; /* of the chunk read last ... */
    bool mark_is_last;        /* ... and no other has it from here on: do not look again */
    enum { BORROWED, MAPPED, COPIED } kind;
};

static enum rat_status reader_new(const uint8_t *bytes, size_t size, int kind, struct rat_segment_reader **out)
{
    struct rat_segment_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL)
        return RAT_NO_MEMORY;
    reader->bytes = bytes;
    reader->size = size;
    reader->work = size * UINT64_C(8) + (1 << 20);
    reader->kind = kind;
    *out = reader;
    return RAT_OK;
}

enum rat_status rat_segment_open_bytes(const uint8_t *bytes, size_t length, struct rat_segment_reader **out)
{
    return reader_new(bytes, length, BORROWED, out);
}

static bool is_part(const char *path)
{
    size_t length = strlen(path), suffix = strlen(RAT_SEGMENT_PART);
    return length >= suffix && strcmp(path + length - suffix, RAT_SEGMENT_PART) == 0;
}

/* A published file never changes and is mapped. A part file may be cut at any time, which would be a SIGBUS. */
static enum rat_status open_fd(int fd, const char *path, struct rat_segment_reader **out)
{
    struct stat file;
    if (fstat(fd, &file) != 0)
        return rat_status_from_errno(errno);
    if (!S_ISREG(file.st_mode))
        return RAT_INVALID;
    if (is_part(path) || file.st_size == 0) {
        uint8_t *bytes;
        size_t length;
        enum rat_status status = rat_file_read(fd, &bytes, &length);
        if (status == RAT_OK && (status = reader_new(bytes, length, COPIED, out)) != RAT_OK)
            free(bytes);
        return status;
    }
    void *bytes = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return rat_status_from_errno(errno);
    enum rat_status status = reader_new(bytes, (size_t)file.st_size, MAPPED, out);
    if (status != RAT_OK)
        munmap(bytes, (size_t)file.st_size);
    return status;
}

enum rat_status rat_segment_open(const char *path, struct rat_segment_reader **out)
{
    struct stat file;
    if (stat(path, &file) != 0)
        return rat_status_from_errno(errno);
    uint8_t *bytes;
    size_t length;
    enum rat_status status = rat_own_file_read(&file, &bytes, &length);
    if (status == RAT_OK) {
        status = reader_new(bytes, length, COPIED, out);
        if (status != RAT_OK)
            free(bytes);
        return status;
    }
    if (status != RAT_NOT_FOUND)
        return status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return rat_status_from_errno(errno);
    status = open_fd(fd, path, out);
    rat_own_file_close(fd);
    return status;
}

void rat_segment_reader_free(struct rat_segment_reader *reader)
{
    if (reader == NULL)
        return;
    if (reader->kind == MAPPED)
        munmap((void *)(uintptr_t)reader->bytes, reader->size);
    else if (reader->kind == COPIED)
        free((void *)(uintptr_t)reader->bytes);
    free(reader);
}

/* ---------------------------------------------------------------- one entry */

static bool spend(struct rat_segment_reader *reader, uint64_t bytes)
{
    if (bytes > reader->work)
        return false;
    reader->work -= bytes;
    return true;
}

/* Tag and length of a Trace entry at `at`: bytes they take, 0 if it is none or cut. */
static size_t outer_at(const struct rat_segment_reader *reader, size_t at, uint64_t *length)
{
    if (at >= reader->size || reader->bytes[at] != 0x0A)
        return 0;
    uint64_t value = 0;
    for (size_t i = 1; i < OUTER_BYTES_MAX && i < reader->size - at; i++) {
        uint8_t byte = reader->bytes[at + i];
        value |= (uint64_t)(byte & 0x7F) << 7 * (i - 1);
        if (byte < 0x80) {
            *length = value;
            return i + 1;
        }
    }
    return 0;
}

static bool mark_at(const struct rat_segment_reader *reader, size_t at)
{
    return reader->size - at >= MARK_BYTES && memcmp(reader->bytes + at, MARK, MARK_BYTES) == 0;
}

/* Does a chunk message of `length` bytes stand at `at`? */
static bool chunk_at(struct rat_segment_reader *reader, size_t at, uint64_t length, struct rat_read *out)
{
    if (at > reader->size || length > reader->size - at || length > RAT_CHUNK_MAX || !mark_at(reader, at) ||
        !spend(reader, length < RAT_CHUNK_HEADER_MAX ? length : RAT_CHUNK_HEADER_MAX))
        return false;
    enum rat_status status = rat_decode_header(reader->bytes + at, length, &out->header);
    out->kind = status == RAT_UNSUPPORTED ? RAT_READ_UNREADABLE : RAT_READ_CHUNK;
    return status == RAT_OK || status == RAT_UNSUPPORTED;
}

/* An intact entry at `at`, tag and length included. */
static bool entry_at(struct rat_segment_reader *reader, size_t at, struct rat_read *out)
{
    uint64_t length;
    size_t outer = outer_at(reader, at, &length);
    if (outer == 0 || !chunk_at(reader, at + outer, length, out))
        return false;
    out->at = at;
    out->length = outer + length;
    return true;
}

/* A chunk whose message begins at `at`, tag and length before it lost or not: its own size field counts. */
static bool bare_chunk_at(struct rat_segment_reader *reader, size_t at, size_t floor, struct rat_read *out)
{
    if (reader->size - at < SIZE_AT + 4)
        return false;
    const uint8_t *field = reader->bytes + at + SIZE_AT;
    uint64_t size = field[0] | (uint32_t)field[1] << 8 | (uint32_t)field[2] << 16 | (uint32_t)field[3] << 24;
    if (field[-1] != 0x15 || !chunk_at(reader, at, size, out))
        return false;
    for (size_t outer = 2; outer <= OUTER_BYTES_MAX && outer <= at - floor; outer++) {
        uint64_t length;
        if (outer_at(reader, at - outer, &length) == outer && length == size) {
            out->at = at - outer;
            out->length = outer + size;
            return true;
        }
    }
    out->at = at;
    out->length = size;
    return true;
}

/* ---------------------------------------------------------------- damage */

/* The first chunk from `from` on whose marker begins with `mark`, before `limit`. */
static bool scan_for(struct rat_segment_reader *reader, size_t from, size_t limit, const uint8_t *mark,
                     size_t mark_bytes, struct rat_read *out)
{
    for (size_t at = from; at < limit; at++) {
        const uint8_t *found = memmem(reader->bytes + at, limit - at, mark, mark_bytes);
        size_t where = found != NULL ? (size_t)(found - reader->bytes) : limit;
        if (!spend(reader, where - at) || found == NULL)
            return false;
        if (bare_chunk_at(reader, where, from, out))
            return true;
        at = where;
    }
    return false;
}

/* The next chunk from `from` on; one of the session at hand before any other. */
static bool scan(struct rat_segment_reader *reader, size_t from, struct rat_read *out)
{
    if (reader->has_mark && !reader->mark_is_last) {
        if (scan_for(reader, from, reader->size, reader->mark, SYNC_BYTES, out))
            return true;
        reader->mark_is_last = true;
    }
    return scan_for(reader, from, reader->size, (const uint8_t *)MARK, MARK_BYTES, out);
}

/* Are the bytes from `at` to the end the beginning of a chunk? */
static bool is_torn(const struct rat_segment_reader *reader, size_t at)
{
    size_t left = reader->size - at;
    if (reader->bytes[at] != 0x0A)
        return false;
    uint64_t length;
    size_t outer = outer_at(reader, at, &length);
    if (outer == 0) {
        for (size_t i = 1; i < left; i++)
            if (i >= OUTER_BYTES_MAX || reader->bytes[at + i] < 0x80)
                return false;
        return true;
    }
    size_t have = left - outer;
    return length > have && length <= RAT_CHUNK_MAX &&
           memcmp(reader->bytes + at + outer, MARK, have < MARK_BYTES ? have : MARK_BYTES) == 0;
}

/* Where to go on after a chunk whose header holds. */
static void go_behind(struct rat_segment_reader *reader, struct rat_read *read)
{
    size_t end = read->at + read->length;
    uint64_t length;
    size_t outer = outer_at(reader, end, &length);
    bool follows = end == reader->size || (outer != 0 && mark_at(reader, end + outer)) || is_torn(reader, end);
    const struct rat_chunk_header *header = &read->header;
    if (!reader->has_mark || memcmp(reader->mark + 2, header->sync, sizeof header->sync) != 0) {
        memcpy(reader->mark, MARK, 2);
        memcpy(reader->mark + 2, header->sync, sizeof header->sync);
        reader->has_mark = true;
        reader->mark_is_last = false;
    }
    struct rat_read next;
    if (!follows && spend(reader, header->body_bytes) &&
        rat_check_xxh3(header->body, header->body_bytes) != header->body_check &&
        scan_for(reader, (size_t)(header->body - reader->bytes), end, reader->mark, SYNC_BYTES, &next)) {
        read->length = next.at - read->at;
        end = next.at;
    }
    reader->at = end;
}

void rat_segment_next(struct rat_segment_reader *reader, struct rat_read *out)
{
    size_t at = reader->at;
    *out = (struct rat_read){.kind = RAT_READ_END, .at = at};
    if (at >= reader->size)
        return;
    if (entry_at(reader, at, out)) {
        go_behind(reader, out);
        return;
    }
    if (scan(reader, at, out)) {
        if (out->at == at) { /* only its tag and length were damaged, or lost */
            go_behind(reader, out);
            return;
        }
        reader->at = out->at;
        *out = (struct rat_read){.kind = RAT_READ_SKIPPED, .at = at, .length = out->at - at};
        return;
    }
    bool torn = is_torn(reader, at);
    *out = (struct rat_read){.kind = torn ? RAT_READ_TORN : RAT_READ_SKIPPED, .at = at, .length = reader->size - at};
    reader->at = reader->size;
}
