/* roster.h - who is in the recordings: sessions, their lanes, and their contexts (threads and fibers).
 *
 * Memory:  in the allowance given. Threads: one at a time.
 */
#ifndef RAT_MODEL_ROSTER_H
#define RAT_MODEL_ROSTER_H

#include "model/replay.h"

/* Contexts have ids from 1; one above this is damage. */
#define RAT_CONTEXT_ID_MAX (1u << 24)

struct rat_roster {
    struct rat_replay_session **sessions;
    size_t count, capacity;
};

void rat_roster_free(struct rat_roster *roster, struct rat_allowance *allowance);

/* The session of a chunk, made at its first one. */
RAT_MUST_CHECK enum rat_status rat_roster_session(struct rat_roster *roster, struct rat_allowance *allowance,
                                                  const struct rat_chunk_header *header,
                                                  struct rat_replay_session **out);

RAT_MUST_CHECK enum rat_status rat_roster_lane(struct rat_replay_session *session, struct rat_allowance *allowance,
                                               uint32_t number, struct rat_replay_lane **out);

/* The context with this id, made if need be; id within 1..RAT_CONTEXT_ID_MAX. */
RAT_MUST_CHECK enum rat_status rat_roster_context(struct rat_replay_session *session, struct rat_allowance *allowance,
                                                  uint32_t id, struct rat_replay_context **out);

static inline struct rat_replay_context *rat_roster_find(const struct rat_replay_session *session, uint32_t id)
{
    return id < session->context_capacity ? session->contexts[id] : NULL;
}

/* Take in a body's contexts. The id of a context that ended may have been given to another: that one starts anew.
 * `ahead`: read ahead of its place in the stream, so it only fills what is unknown. */
RAT_MUST_CHECK enum rat_status rat_roster_take(struct rat_replay_session *session, struct rat_allowance *allowance,
                                               const struct rat_catalog *catalog, const struct rat_visitor *visitor,
                                               const struct rat_body *body, bool ahead);

/* The lane's stream is broken at its last time: all its contexts may have lost events. */
void rat_roster_break(struct rat_replay_session *session, struct rat_replay_lane *lane,
                      const struct rat_visitor *visitor);

/* The context's stack is known again. */
void rat_roster_synced(struct rat_replay_lane *lane, struct rat_replay_context *context);

#endif
