/* source.h - the segment files a reader was given, in the order it must read them: by session, then by segment.
 *
 * Memory:  paths and bytes are the caller's. Threads: one at a time.
 */
#ifndef RAT_MODEL_SOURCE_H
#define RAT_MODEL_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "wire/segment.h"

struct rat_source {
    const char *path;     /* NULL: read `bytes` instead */
    const uint8_t *bytes;
    size_t length;
    /* of its first readable chunk */
    bool any;
    uint64_t session_hi, session_lo;
    uint32_t segment;
    uint64_t start_ns; /* CLOCK_REALTIME */
    /* what reading found, for `ratrace verify` */
    uint64_t chunks;
    uint64_t skipped_bytes, skipped_places, first_skipped_at;
    uint64_t torn_bytes;
};

/* Open for reading. A part file that was published meanwhile is found under its new name. */
RAT_MUST_CHECK enum rat_status rat_source_open(const struct rat_source *source, struct rat_segment_reader **reader);

/* Look at the first chunk of each and sort. On failure `failed` is the one that could not be opened. */
RAT_MUST_CHECK enum rat_status rat_sources_sort(struct rat_source *sources, size_t count,
                                                const struct rat_source **failed);

#endif
