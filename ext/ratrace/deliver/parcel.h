/* parcel.h - a segment as it is delivered: what it says of itself, its digest, and the key it is known by.
 *
 * The key is made of the session's id and the segment's number, both of which stand in the segment's first chunk. So
 * every attempt, and every process that makes one, uses the same, whatever the file is called meanwhile.
 *
 * Read in one pass with pread, chunk by chunk: a file that somebody cuts meanwhile is a short read here, where a mapping
 * would be a SIGBUS in the host.
 *
 * Memory:  the largest chunk of the file, while it is read.
 * Threads: any.
 */
#ifndef RAT_DELIVER_PARCEL_H
#define RAT_DELIVER_PARCEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "deliver/digest.h"

#define RAT_PARCEL_KEY_BYTES 48

struct rat_parcel {
    const char *name; /* the file's; the caller's */
    int fd;           /* the caller's */
    uint64_t bytes;
    uint64_t session_hi, session_lo;
    uint32_t segment, pid;
    char service[128], host[128];
    uint64_t start_ns, end_ns; /* CLOCK_REALTIME of the first chunk's begin and the last one's end */
    uint64_t events;
    bool damaged;              /* not read to the end: what follows a damaged place is not counted */
    uint8_t sha256[RAT_SHA256_BYTES];
    char sha256_hex[RAT_SHA256_HEX];
    char key[RAT_PARCEL_KEY_BYTES]; /* "<32 hex>-<segment>" */
};

/* "<32 hex>-<segment>", the Idempotency-Key. */
void rat_parcel_key(uint64_t session_hi, uint64_t session_lo, uint32_t segment, char out[RAT_PARCEL_KEY_BYTES]);

/* Read the segment `fd` of `bytes` bytes. RAT_CORRUPT: this is no segment file. RAT_END: `*cancel` (may be NULL) became
 * other than 0. RAT_IO, RAT_NO_MEMORY. */
RAT_MUST_CHECK enum rat_status rat_parcel_read(int fd, const char *name, uint64_t bytes,
                                               const _Atomic uint32_t *cancel, struct rat_parcel *out);

#endif
