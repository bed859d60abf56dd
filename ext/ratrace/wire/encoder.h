/* encoder.h - from a drained slot to the bytes of one Chunk (proto/ratrace/v1/trace.proto).
 *
 * One encoder serves one session: it knows which names, frames and contexts the current segment already carries, and
 * keeps its buffers and its zstd context from chunk to chunk. A chunk's dictionary entries count as sent only after
 * rat_encoder_settle(true): an abandoned chunk takes its names with it. Several chunks may be encoded before one
 * settle; it is about all of them.
 *
 * Memory:  bounded by the slot size: address space of 22 bytes a slot word and as much again for body and compressed
 *          body; of it, a chunk touches what it fills (about 8 bytes an event). All owned here.
 * Threads: one at a time (the serializer, or a recovery). Never sees Ruby.
 */
#ifndef RAT_WIRE_ENCODER_H
#define RAT_WIRE_ENCODER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/status.h"
#include "record/dictionary.h"
#include "record/lane.h"
#include "record/layout.h"

#define RAT_CHUNK_RAW_MAX (UINT32_C(64) << 20) /* a body before compression */
#define RAT_CHUNK_HEADER_MAX 16384u            /* everything of a Chunk but its body */
#define RAT_CHUNK_MAX (RAT_CHUNK_RAW_MAX + RAT_CHUNK_HEADER_MAX)
#define RAT_CHUNK_LOSTS_MAX 64u                /* labels in one header; more are cut, the totals still tell */
#define RAT_SYNC_CONSTANT "\x89RAT\r\n\x1a\n"  /* first 8 bytes of Chunk.sync */

/* ratrace.v1.Codec */
enum rat_codec { RAT_CODEC_ZSTD = 1, RAT_CODEC_STORED = 2 };

/* ratrace.v1.Reason */
enum rat_reason {
    RAT_REASON_PERIOD = 1,
    RAT_REASON_HALF_FULL,
    RAT_REASON_FLUSH,
    RAT_REASON_ROTATE,
    RAT_REASON_STOP,
    RAT_REASON_CLOCK_BREAK,
    RAT_REASON_RECOVERED,
    RAT_REASON_OPENING,
    RAT_REASON_CLOSING,
    RAT_REASON_CRASH,
};

struct rat_totals {
    uint64_t stored;
    uint64_t drop[RAT_DROP_CAUSES];
};

struct rat_lost_label {
    uint32_t cause; /* enum rat_drop_cause or enum rat_lost_cause */
    uint64_t first_seq, last_seq, count, from_ticks, to_ticks;
};

/* A lane's newest chunk in the files, as a closing chunk tells of it. */
struct rat_lane_mark {
    uint32_t lane;
    uint64_t sequence;
    struct rat_totals closed;
};

/* Everything of a chunk's header that the encoder cannot see for itself. */
struct rat_chunk_info {
    const struct rat_live_head *session; /* ids, sync, Session message; live or a recovered copy */
    uint32_t segment;
    uint32_t lane; /* number, from 1; 0 = session chunk */
    uint64_t sequence;
    enum rat_reason reason;
    struct rat_totals opened, closed;
    uint32_t in_flight;
    struct rat_anchor start, end;
    const struct rat_lost_label *lost;
    uint32_t lost_count;
    const struct rat_lane_mark *marks; /* closing chunks; at most RAT_LANES */
    uint32_t mark_count;
    bool with_session; /* first chunk of a segment: include the Session message */
};

struct rat_encoder;

/* `capacity` = words of a slot (0 for an encoder of session chunks only). level: zstd, 1..19, 0 = the default, 1. */
RAT_MUST_CHECK enum rat_status rat_encoder_new(uint32_t capacity, int level, struct rat_encoder **out);
void rat_encoder_free(struct rat_encoder *encoder);

/* A new segment starts: nothing has been sent in it. */
void rat_encoder_begin_segment(struct rat_encoder *encoder);

/* Append one Trace entry (tag, length, Chunk) for these slot words to `out`. `words`/`count`/`events` from a drain;
 * `base_ticks` of the interval; `dict` must have been taken after the drain. RAT_CORRUPT: the words do not hold exactly
 * `events` events, or name something that is not in `dict`. RAT_NO_MEMORY, RAT_TOO_BIG. On any failure `out` and the
 * marks are as before. */
RAT_MUST_CHECK enum rat_status rat_encoder_lane_chunk(struct rat_encoder *encoder, const struct rat_chunk_info *info,
                                                      const uint64_t *words, uint32_t count, uint32_t events,
                                                      uint64_t base_ticks, const struct rat_dict_view *dict,
                                                      struct rat_buffer *out);

/* The same for a session chunk (lane 0). With `dict` the whole dictionary is repeated (closing), in as many chunks as
 * RAT_CHUNK_RAW_MAX demands being out of question at the default caps. NULL: none. */
RAT_MUST_CHECK enum rat_status rat_encoder_session_chunk(struct rat_encoder *encoder,
                                                         const struct rat_chunk_info *info,
                                                         const struct rat_dict_view *dict, struct rat_buffer *out);

/* The chunks since the last settle are in the file (`appended`), or never will be. */
void rat_encoder_settle(struct rat_encoder *encoder, bool appended);

#endif
