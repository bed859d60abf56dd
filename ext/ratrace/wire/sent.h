/* sent.h - which names, frames and contexts the current segment already carries.
 *
 * An entry is pulled when an event first uses it in a segment, with everything it refers to: a frame its names, a
 * context its name and its thread. It counts as sent at once, so that the next chunk does not repeat it, and stops
 * counting if its chunk is not written after all. A context's entry may change during its life (a thread gets a name);
 * then it is pulled again.
 *
 * Memory:  one byte a frame or name and 9 a context of the dictionary; lists of what was pulled since the last settle.
 * Threads: one at a time.
 */
#ifndef RAT_WIRE_SENT_H
#define RAT_WIRE_SENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "record/dictionary.h"

struct rat_sent_ids {
    uint32_t *ids;
    size_t count, room;
    size_t chunk; /* count when the current chunk began */
};

struct rat_sent_context {
    uint32_t id;
    uint64_t hash_before; /* of the entry sent before; 0 = none */
    struct rat_context_entry entry;
};

struct rat_sent {
    struct rat_dict_view view; /* of the current chunk */
    uint8_t *frames;           /* by id: 1 = sent; [0] is always 1 */
    uint8_t *names;
    uint64_t *context_hashes;  /* by id: of the entry sent, 0 = none */
    uint8_t *contexts_seen;    /* by id: looked at in this chunk */
    uint32_t frame_room, name_room, context_room;
    struct rat_sent_ids new_frames, new_names, seen_contexts;
    struct rat_sent_context *new_contexts;
    size_t new_context_count, new_context_room, new_context_chunk;
};

void rat_sent_init(struct rat_sent *sent);
void rat_sent_free(struct rat_sent *sent);

/* A new segment: nothing is sent. */
void rat_sent_begin_segment(struct rat_sent *sent);

/* A new chunk. `view` NULL: no dictionary, every id is unknown. */
RAT_MUST_CHECK enum rat_status rat_sent_begin_chunk(struct rat_sent *sent, const struct rat_dict_view *view);

/* An event uses this frame or context; 0 is none. RAT_CORRUPT: not in the dictionary. */
RAT_MUST_CHECK enum rat_status rat_sent_use_frame(struct rat_sent *sent, rat_frame_id id);
RAT_MUST_CHECK enum rat_status rat_sent_use_context(struct rat_sent *sent, rat_context_id id);

/* The chunk failed: what it pulled is not sent. */
void rat_sent_undo_chunk(struct rat_sent *sent);

/* All chunks since the last settle are written, or never will be. */
void rat_sent_settle(struct rat_sent *sent, bool written);

#endif
