/* playback.h - the events of one decoded chunk, played on the stacks of their contexts. Rules: replay.h.
 *
 * Memory:  a scratch table for snapshots, in the allowance given. Threads: one at a time.
 */
#ifndef RAT_MODEL_PLAYBACK_H
#define RAT_MODEL_PLAYBACK_H

#include "model/replay.h"
#include "model/stack.h"
#include "model/timing.h"

struct rat_playback {
    struct rat_allowance *allowance;
    struct rat_catalog *catalog;
    const struct rat_visitor *visitor;
    /* the chunk */
    struct rat_replay_session *session;
    struct rat_replay_lane *lane;
    const struct rat_chunk_header *header;
    const struct rat_body *body; /* NULL = none in hand */
    struct rat_timing timing;
    uint64_t ticks;
    size_t at, id_at, rich_at, word_at;
    /* scratch */
    struct rat_stack_entry *entries;
    uint32_t *frames;
    size_t entry_capacity, frame_capacity;
};

void rat_playback_begin(struct rat_playback *playback, struct rat_replay_session *session,
                        struct rat_replay_lane *lane, const struct rat_chunk_header *header,
                        const struct rat_body *body);

/* Play up to `events` of what is left; `body` becomes NULL at the end. */
RAT_MUST_CHECK enum rat_status rat_playback_run(struct rat_playback *playback, uint64_t events);

void rat_playback_free(struct rat_playback *playback);

#endif
