#include "deliver/parcel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "deliver/fork_gate.h"
#include "wire/decoder.h"
#include "wire/segment.h"

#define PIECE (UINT32_C(256) << 10)
#define OUTER_TAG 0x0A
#define OUTER_BYTES_MAX 6

struct pass {
    int fd;
    uint64_t at; /* how far the digest has got */
    struct rat_sha256 digest;
    struct rat_buffer chunk;
    const _Atomic uint32_t *cancel;
};

void rat_parcel_key(uint64_t session_hi, uint64_t session_lo, uint32_t segment, char out[RAT_PARCEL_KEY_BYTES])
{
    snprintf(out, RAT_PARCEL_KEY_BYTES, "%016" PRIx64 "%016" PRIx64 "-%06" PRIu32, session_hi, session_lo, segment);
}

static enum rat_status read_at(int fd, uint64_t at, void *to, size_t length, size_t *got)
{
    for (*got = 0; *got < length;) {
        ssize_t some = pread(fd, (uint8_t *)to + *got, length - *got, (off_t)(at + *got));
        if (some < 0 && errno == EINTR)
            continue;
        if (some < 0)
            return rat_status_from_errno(errno);
        if (some == 0)
            break;
        *got += (size_t)some;
    }
    return RAT_OK;
}

/* Tag and length of the chunk at `at`, if they are whole and plausible. */
static bool read_outer(const uint8_t *bytes, size_t length, size_t *outer, uint64_t *size)
{
    if (length < 2 || bytes[0] != OUTER_TAG)
        return false;
    *size = 0;
    for (size_t i = 1; i < length && i < OUTER_BYTES_MAX; i++) {
        *size |= (uint64_t)(bytes[i] & 0x7F) << 7 * (i - 1);
        if (bytes[i] < 0x80) {
            *outer = i + 1;
            return *size <= RAT_CHUNK_MAX;
        }
    }
    return false;
}

static void note_header(struct rat_parcel *parcel, const struct rat_chunk_header *header, bool first)
{
    if (first) {
        parcel->session_hi = header->session_hi;
        parcel->session_lo = header->session_lo;
        parcel->segment = header->segment;
        parcel->start_ns = header->start.realtime_ns;
    }
    if (header->has_info && parcel->pid == 0) {
        parcel->pid = header->info.pid;
        snprintf(parcel->service, sizeof parcel->service, "%s", header->info.service);
        snprintf(parcel->host, sizeof parcel->host, "%s", header->info.host);
    }
    if (header->start.realtime_ns < parcel->start_ns)
        parcel->start_ns = header->start.realtime_ns;
    if (header->end.realtime_ns > parcel->end_ns)
        parcel->end_ns = header->end.realtime_ns;
    if (header->lane != 0)
        parcel->events += header->events;
}

/* One chunk into the buffer, and its bytes into the digest. RAT_CORRUPT: there is none here. */
static enum rat_status next_chunk(struct pass *pass, struct rat_chunk_header *header)
{
    uint8_t outer[OUTER_BYTES_MAX];
    size_t got, outer_bytes = 0;
    uint64_t size = 0;
    enum rat_status status = read_at(pass->fd, pass->at, outer, sizeof outer, &got);
    if (status != RAT_OK)
        return status;
    if (!read_outer(outer, got, &outer_bytes, &size))
        return RAT_CORRUPT;
    pass->chunk.length = 0;
    status = rat_buffer_reserve(&pass->chunk, outer_bytes + size);
    if (status != RAT_OK)
        return status;
    status = read_at(pass->fd, pass->at, pass->chunk.bytes, outer_bytes + size, &got);
    if (status != RAT_OK)
        return status;
    if (got < outer_bytes + size)
        return RAT_CORRUPT;
    status = rat_decode_header(pass->chunk.bytes + outer_bytes, size, header);
    if (status != RAT_OK && status != RAT_UNSUPPORTED)
        return RAT_CORRUPT;
    rat_sha256_update(&pass->digest, pass->chunk.bytes, got);
    pass->at += got;
    return RAT_OK;
}

/* What follows a damaged place counts only for the digest. */
static enum rat_status digest_rest(struct pass *pass, uint64_t bytes)
{
    enum rat_status status = pass->at < bytes ? rat_buffer_reserve(&pass->chunk, PIECE) : RAT_OK;
    while (status == RAT_OK && pass->at < bytes) {
        rat_fork_gate_pass();
        size_t want = bytes - pass->at < PIECE ? (size_t)(bytes - pass->at) : PIECE, got;
        status = read_at(pass->fd, pass->at, pass->chunk.bytes, want, &got);
        if (status == RAT_OK && got < want)
            status = RAT_IO; /* it is being cut */
        if (status == RAT_OK && pass->cancel != NULL &&
            atomic_load_explicit(pass->cancel, memory_order_relaxed) != 0)
            status = RAT_END;
        if (status == RAT_OK) {
            rat_sha256_update(&pass->digest, pass->chunk.bytes, got);
            pass->at += got;
        }
    }
    return status;
}

enum rat_status rat_parcel_read(int fd, const char *name, uint64_t bytes, const _Atomic uint32_t *cancel,
                                struct rat_parcel *out)
{
    *out = (struct rat_parcel){.name = name, .fd = fd, .bytes = bytes};
    struct pass pass = {.fd = fd, .cancel = cancel};
    rat_buffer_init(&pass.chunk, (size_t)RAT_CHUNK_MAX + OUTER_BYTES_MAX);
    rat_sha256_begin(&pass.digest);
    enum rat_status status = bytes > 0 ? RAT_OK : RAT_CORRUPT;
    bool first = true;
    while (status == RAT_OK && pass.at < bytes) {
        struct rat_chunk_header header;
        rat_fork_gate_pass();
        if (cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed) != 0) {
            status = RAT_END;
            break;
        }
        status = next_chunk(&pass, &header);
        if (status == RAT_OK)
            note_header(out, &header, first);
        first = first && status != RAT_OK;
    }
    if (status == RAT_CORRUPT && !first) {
        out->damaged = true;
        status = digest_rest(&pass, bytes);
    }
    enum rat_status finished = rat_sha256_finish(&pass.digest, status == RAT_OK ? out->sha256 : NULL);
    rat_buffer_free(&pass.chunk);
    if (status == RAT_OK)
        status = finished;
    if (status != RAT_OK)
        return status;
    rat_hex(out->sha256, sizeof out->sha256, out->sha256_hex);
    rat_parcel_key(out->session_hi, out->session_lo, out->segment, out->key);
    return RAT_OK;
}
