/* decoder.h - from bytes that may be hostile to one Chunk and its events.
 *
 * Two steps, because accounting must not depend on a readable body: the header (clear, CRC-32C) gives identity, totals
 * and anchors; the body (XXH3-64 before zstd sees it) gives columns and dictionary entries. Every size is checked
 * before it is used for an allocation; nothing is larger than the limits given.
 *
 * Memory:  a decoded body belongs to the decoder and is valid until the next body. Bounded by `memory_max`.
 * Threads: one at a time.
 */
#ifndef RAT_WIRE_DECODER_H
#define RAT_WIRE_DECODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "record/tags.h"
#include "wire/encoder.h"

#define RAT_HEADER_LOSTS_MAX RAT_CHUNK_LOSTS_MAX

struct rat_session_info {
    char service[128], host[128], ruby[64], recorder[64], trace[256];
    char tags[RAT_TAGS_BYTES]; /* those that fit (record/tags.h) */
    uint32_t pid, parent_pid;
    uint64_t start_ns, ticks_per_s, slot_bytes;
    uint64_t parent_hi, parent_lo;
    uint32_t clock, fence, frame_path;
};

struct rat_chunk_header {
    uint8_t sync[16];
    uint32_t size;
    uint32_t requires;
    uint64_t session_hi, session_lo;
    uint32_t segment, lane;
    uint64_t sequence;
    uint32_t reason; /* enum rat_reason */
    struct rat_totals opened, closed; /* causes this version does not know are summed up in drop[0] */
    uint32_t events, in_flight;
    struct rat_anchor start, end;
    struct rat_lost_label lost[RAT_HEADER_LOSTS_MAX]; /* the first ones; more are cut */
    uint32_t lost_count;
    struct rat_lane_mark marks[RAT_LANES]; /* the first ones, as above */
    uint32_t mark_count;
    uint32_t codec, raw_bytes, body_bytes;
    uint64_t body_check;
    bool has_info;
    struct rat_session_info info;
    const uint8_t *body; /* into the bytes given */
};

/* Parse the Chunk message of exactly `length` bytes. RAT_CORRUPT, or RAT_UNSUPPORTED for an unknown `requires` bit
 * (the header is filled in all the same). */
RAT_MUST_CHECK enum rat_status rat_decode_header(const uint8_t *bytes, size_t length, struct rat_chunk_header *out);

/* What a body says. Columns as in the proto; name texts point into the decoded body. Held for all of it: ids of events
 * and entries are at most RAT_EVENT_ID_MAX, no entry has id 0, base_ticks plus all gaps does not overflow, no kind is
 * 0 or RAT_EVENT_GAP, and the payload of a known rich kind is long enough for what it says (wire/columns.h). An event's
 * frame or context need not have an entry here: damage can have taken it. */
struct rat_body_name {
    uint32_t id, length, encoding;
    const uint8_t *text;
};
struct rat_body_frame {
    uint32_t id;
    struct rat_frame_entry entry;
};
struct rat_body_context {
    uint32_t id;
    struct rat_context_entry entry;
};
struct rat_body {
    uint64_t base_ticks;
    const uint64_t *gap;
    const uint8_t *kind;
    const uint32_t *id;
    const uint32_t *rich_words;
    const uint64_t *rich;
    size_t events, ids, riches, rich_total;
    const struct rat_body_name *names;
    size_t name_count;
    const struct rat_body_frame *frames;
    size_t frame_count;
    const struct rat_body_context *contexts; /* a later entry of one id replaces an earlier one */
    size_t context_count;
};

struct rat_decoder;

/* `memory_max`: bytes for one decoded body and all it needs; 0 = 256 MiB. */
RAT_MUST_CHECK enum rat_status rat_decoder_new(size_t memory_max, struct rat_decoder **out);
void rat_decoder_free(struct rat_decoder *decoder);

/* Decompress, parse and check the body of `header`: all counts agree with the header and with each other.
 * RAT_CORRUPT, RAT_TOO_BIG, RAT_NO_MEMORY, RAT_UNSUPPORTED. */
RAT_MUST_CHECK enum rat_status rat_decode_body(struct rat_decoder *decoder, const struct rat_chunk_header *header,
                                               const struct rat_body **out);

#endif
