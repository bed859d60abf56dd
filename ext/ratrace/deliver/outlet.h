/* outlet.h - where a session's chunks go: one segment file after another.
 *
 * A segment begins with an opening chunk (lane 0, Session message) and ends with a closing one (lane 0, the whole
 * dictionary, and how far each lane has come), then it is published. The file is made when there is something to write.
 * A segment whose file was deleted, or whose descriptor the host closed, is given up and the next one begun; what it
 * held is a gap in the totals. Used by the serializer for a living session and by recovery for a dead one.
 *
 * Order.   Each word of the head that a recovery reads is stored after the write it speaks of has returned:
 *          session_seq after the lane-0 chunk, segment and part of the next segment after the closing chunk and before
 *          the file gets its final name. So a number in the head was never published, or its part file is there.
 *
 * Memory:  owns the encoder, one chunk and the writer.
 * Threads: one at a time.
 * Fork:    the child calls rat_outlet_abandon.
 */
#ifndef RAT_DELIVER_OUTLET_H
#define RAT_DELIVER_OUTLET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buffer.h"
#include "base/status.h"
#include "record/dictionary.h"
#include "record/layout.h"
#include "wire/encoder.h"
#include "wire/segment.h"

#define RAT_SEGMENT_NAME_MAX 250 /* a file name with ".part" still fits into 255 */

struct rat_outlet_counts {
    uint64_t chunks, bytes, segments, failed_writes, encode_ns, write_ns;
};

struct rat_outlet {
    struct rat_live_head *head; /* of the session, live or a copy */
    struct rat_encoder *encoder;
    struct rat_segment_writer writer;
    struct rat_buffer chunk;
    dev_t device;
    ino_t inode;
    bool kept;      /* `chunk` is encoded for the current segment and not yet appended */
    bool opened;    /* the opening chunk is in the file */
    bool closed;    /* the closing chunk is in the file: publish is due */
    struct rat_anchor opened_at;
    struct rat_outlet_counts counts;
    char published[4096]; /* path of the newest published segment */
};

/* `head`: session, segment (the number to use next), service, host, out_dir. */
RAT_MUST_CHECK enum rat_status rat_outlet_init(struct rat_outlet *outlet, struct rat_live_head *head);
void rat_outlet_free(struct rat_outlet *outlet);

/* The file name of a segment of this session: SERVICE-HOST-TIME-PID-SESSION-SEGMENT.ratrace. */
void rat_outlet_name(const struct rat_live_head *head, uint32_t segment, char out[RAT_SEGMENT_NAME_MAX]);

/* Go on in a part file a dead process left, adopted by rat_segment_adopt. */
void rat_outlet_resume(struct rat_outlet *outlet, const struct rat_segment_writer *writer);

/* Have a segment open with its opening chunk in it. What was encoded for one that is lost must be encoded again:
 * `kept` says. */
RAT_MUST_CHECK enum rat_status rat_outlet_ready(struct rat_outlet *outlet);

/* Encode a lane's chunk for the segment that is ready; info->session and segment are set here. Nothing else may be
 * encoded until it was appended or dropped. */
RAT_MUST_CHECK enum rat_status rat_outlet_encode(struct rat_outlet *outlet, struct rat_chunk_info *info,
                                                 const uint64_t *words, uint32_t count, uint32_t events,
                                                 uint64_t base_ticks, const struct rat_dict_view *dict);
/* Write what was encoded. On failure it is kept: call again. */
RAT_MUST_CHECK enum rat_status rat_outlet_append(struct rat_outlet *outlet);

/* Is the segment large enough, or old enough, to be closed? */
bool rat_outlet_is_large(const struct rat_outlet *outlet, uint64_t bytes);
bool rat_outlet_is_old(const struct rat_outlet *outlet, uint64_t age_ns, uint64_t now_ns);

/* What the closing chunk says: of each lane the newest chunk that is written, so that its loss would be seen. */
struct rat_outlet_marks {
    struct rat_lane_mark lane[RAT_LANES];
    uint32_t count;
};

/* Append the closing chunk (RAT_REASON_CLOSING or _CRASH) unless it is there, and go on to the next number. `dict` may
 * be NULL. Then rat_outlet_publish. Both again after a failure. */
RAT_MUST_CHECK enum rat_status rat_outlet_finish(struct rat_outlet *outlet, enum rat_reason reason,
                                                 const struct rat_dict_view *dict,
                                                 const struct rat_outlet_marks *marks);
/* RAT_NOT_FOUND: the file is no longer there; it is given up. Any other failure leaves the part file, closed. */
RAT_MUST_CHECK enum rat_status rat_outlet_publish(struct rat_outlet *outlet);

/* In a forked child: close the descriptor if it still is that file. Frees nothing. */
void rat_outlet_abandon(struct rat_outlet *outlet);

/* Make `dir` and what is missing above it, 0700, and give its real path. On failure `why` says on one line what to do. */
RAT_MUST_CHECK enum rat_status rat_outlet_prepare_dir(const char *dir, char out[RAT_OUT_DIR_MAX], char *why,
                                                      size_t why_length);

#endif
