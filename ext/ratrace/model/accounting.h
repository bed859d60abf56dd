/* accounting.h - what became of every event, from chunk headers alone.
 *
 *   emitted = decoded + dropped + lost + unreadable + in flight
 *
 * per lane and session, exactly. The left side is the difference of the cumulative totals at both ends of what was
 * read; the right side is added up chunk by chunk and gap by gap. They meet only if nothing was forgotten or invented.
 * What lies before the first chunk given (earlier segments left out) and after the last (no closing chunk) is outside
 * of both, and said.
 *
 * Memory:  in the allowance given; a few hundred bytes a lane, 16 a segment.
 * Threads: one at a time.
 */
#ifndef RAT_MODEL_ACCOUNTING_H
#define RAT_MODEL_ACCOUNTING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "model/allowance.h"
#include "wire/decoder.h"

/* What contradicts itself in a recording; any of these fails `ratrace verify`. */
#define RAT_FINDING_LIST(X)                                                                        \
    X(TOTALS, "the totals of neighbouring chunks disagree")                                        \
    X(COUNT, "a chunk's totals disagree with its number of events")                                \
    X(BALANCE, "the events of a lane do not add up")                                               \
    X(LATE, "a chunk comes after one with a higher sequence")                                      \
    X(CONTENDED, "events were dropped because no slot was free, which cannot happen")              \
    X(SNAPSHOT, "a snapshot differs from the events before it although nothing was lost")          \
    X(EMPTY_RETURN, "a return while no frame is open although nothing was lost")                   \
    X(RETURN_KIND, "a return of another kind than the open frame")                                 \
    X(UNWIND, "more frames unwound than are open although nothing was lost")                       \
    X(NO_CONTEXT, "an event before its context was told")                                          \
    X(LANE, "one context on two lanes")                                                            \
    X(PAYLOAD, "a rich event with a payload that makes no sense")                                  \
    X(NAME, "an event's frame is in no dictionary although no chunk is missing")

enum rat_finding {
#define RAT_FINDING_CODE(code, text) RAT_FINDING_##code,
    RAT_FINDING_LIST(RAT_FINDING_CODE)
#undef RAT_FINDING_CODE
    RAT_FINDINGS
};

/* Where a kind of finding was met first. */
struct rat_finding_count {
    uint64_t count;
    uint32_t segment, lane;
    uint64_t sequence;
};

#define RAT_CAUSES 24 /* drop and lost causes share one numbering (ratrace.v1.Cause) */

#define RAT_MISSING_MAX 16 /* ranges remembered, to tell a late chunk from a repeated one */

struct rat_sequence_range {
    uint64_t from, to;
};

struct rat_lane_account {
    uint32_t lane;
    bool any;
    uint64_t first_sequence, last_sequence;
    struct rat_totals opened, closed; /* of the first and of the last chunk */
    uint64_t chunks, decoded;
    uint64_t before;                  /* stored before the first chunk given, in segments not given */
    uint64_t dropped[RAT_CAUSES];
    uint64_t lost[RAT_CAUSES];        /* in missing chunks, by label, else RAT_LOST_UNKNOWN */
    uint64_t lost_chunks;
    uint64_t damaged, damaged_chunks; /* of `lost`: the header could be read, the body not */
    uint64_t unreadable, unreadable_chunks;
    uint64_t duplicates;              /* chunks met again */
    uint64_t in_flight;
    uint64_t drop_from_ns, drop_to_ns; /* CLOCK_MONOTONIC, around all drops with a known time; 0 = none */
    struct rat_sequence_range missing[RAT_MISSING_MAX];
    uint32_t missing_count;
};

struct rat_segment_account {
    uint32_t number;
    bool closing; /* its closing chunk was read */
};

struct rat_session_account {
    struct rat_lane_account *lanes; /* [0] = session chunks */
    size_t lane_count, lane_capacity;
    struct rat_segment_account *segments;
    size_t segment_count, segment_capacity;
    bool crashed; /* a recovery wrote the end */
    bool stopped; /* the last segment has its closing chunk */
    struct rat_finding_count findings[RAT_FINDINGS];
};

enum rat_verdict {
    RAT_VERDICT_NEXT,      /* follows the chunk before it, or is the first */
    RAT_VERDICT_GAP,       /* new, but chunks before it are missing */
    RAT_VERDICT_DUPLICATE, /* read before: skip */
    RAT_VERDICT_LATE,      /* out of order: skip */
};

/* Enter a header. `from_start`: segment 1 of the session is among the files, so a first sequence above 1 is a loss.
 * `lane` = the lane's account, valid until the next call. RAT_NO_MEMORY. */
RAT_MUST_CHECK enum rat_status rat_account_header(struct rat_session_account *session, struct rat_allowance *allowance,
                                                  const struct rat_chunk_header *header, bool from_start,
                                                  enum rat_verdict *verdict, struct rat_lane_account **lane);

/* NULL = nothing is known of it. Valid until the next call that enters something. */
struct rat_lane_account *rat_account_lane(const struct rat_session_account *session, uint32_t number);

/* Enter what a closing chunk says of a lane: `*missing` chunks behind the last one read, which are lost. */
RAT_MUST_CHECK enum rat_status rat_account_mark(struct rat_session_account *session, struct rat_allowance *allowance,
                                                const struct rat_chunk_header *header,
                                                const struct rat_lane_mark *mark, bool from_start, bool *missing);
void rat_account_free(struct rat_session_account *session, struct rat_allowance *allowance);

/* The chunk's header stands but not its body. */
void rat_account_damaged(struct rat_lane_account *lane, const struct rat_chunk_header *header);
void rat_account_unreadable(struct rat_lane_account *lane, const struct rat_chunk_header *header);

void rat_account_find(struct rat_session_account *session, enum rat_finding finding,
                      const struct rat_chunk_header *header);

uint64_t rat_account_emitted(const struct rat_lane_account *lane);
uint64_t rat_account_dropped(const struct rat_lane_account *lane);
uint64_t rat_account_lost(const struct rat_lane_account *lane);
bool rat_account_balanced(const struct rat_lane_account *lane);

/* Did the drops move within this chunk? */
bool rat_account_has_drops(const struct rat_chunk_header *header);

const char *rat_finding_text(enum rat_finding finding);

/* "slot_full", "write_failed", ...; "cause_N" is for the caller where this is NULL. */
const char *rat_cause_name(uint32_t cause);

#endif
