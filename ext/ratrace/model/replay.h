/* replay.h - from segment files to what happened: events in order, calls that enter and leave, and what was lost.
 *
 * The reader of everything above the file format: reports, exports and checks are visitors of this.
 *
 * Stacks.  One stack of open frames a context. The recorder compares before it writes (record/event.h), so a return
 *          pops the top and nothing is guessed. A snapshot is the recorder's own stack: equal to ours unless something
 *          was lost between. After a loss what both have in common from the bottom stays open; frames above are closed
 *          by the reader, at the time of the loss (counted as repairs), and frames of the snapshot that we do not know
 *          are open "since before": entered, no call counted. The same for a snapshot with reason REPAIR. Any other
 *          difference is a contradiction (accounting.h), because every event of the context was there to be read.
 * Loss.    A lane's stream is broken by missing, damaged and unreadable chunks, and at the end of a chunk within which
 *          drops were counted (the recorder seals a slot at its first drop). Since the drops are read after the
 *          producer has moved on, they may belong to the end of the next chunk: that, too, is taken for broken.
 * Time.    CLOCK_MONOTONIC ns, never going back within a lane. A frame's total is the time of its context from enter
 *          to leave, waiting and suspended time included; self is total less the totals of the frames called. So self
 *          is never negative, selves add up to totals, and a frame lies inside its caller.
 * Order.   By session, then as in the files; within a lane as recorded. Lanes are not merged.
 * End.     Frames still open when the data ends leave at the last time known, as RAT_LEFT_OPEN.
 *
 * Memory:  bounded by `memory_max`: half for one decoded chunk, half for names, contexts and stacks.
 * Threads: one at a time; takes no lock, knows no Ruby.
 */
#ifndef RAT_MODEL_REPLAY_H
#define RAT_MODEL_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/accounting.h"
#include "model/allowance.h"
#include "model/catalog.h"
#include "model/omission.h"
#include "model/scope.h"
#include "model/source.h"
#include "record/event.h"

#define RAT_REPLAY_MEMORY_DEFAULT ((size_t)512 << 20)

struct rat_replay_context;

struct rat_replay_lane {
    uint32_t number;
    bool gapped;    /* something was lost since the lane's beginning */
    bool dropped;   /* drops were counted in the last chunk */
    uint64_t last_ns;
    struct rat_replay_context *current; /* whose events these are; NULL = not told yet in this chunk */
    struct rat_replay_context *synced;  /* list of contexts whose stack is known */
};

struct rat_replay_session {
    uint64_t hi, lo;
    uint32_t index; /* in order of appearance */
    bool has_info;
    bool from_start;  /* its first segment is among the files */
    struct rat_session_info info;
    int64_t realtime_ns; /* add to a time for CLOCK_REALTIME */
    uint64_t first_ns, last_ns;
    uint64_t opened, repairs, unmatched, unwound, snapshots, names_lost, unknown_events, clamped;
    struct rat_session_account account;
    struct rat_replay_lane *lanes;
    size_t lane_count, lane_capacity;
    struct rat_replay_context **contexts; /* by id */
    size_t context_capacity;
    struct rat_scope scope;
    uint32_t scope_segment;
    struct rat_omission omission;
    uint64_t cost[RAT_COST_WORDS]; /* of the newest cost event; see event.h */
    uint32_t blind;                /* of the newest note of that kind; a sum of enum rat_blind */
    bool scope_damaged, scope_mended; /* a chunk is missing; the closing chunk's dictionary was read ahead */
};

enum rat_flavor { RAT_FLAVOR_UNKNOWN, RAT_FLAVOR_RUBY, RAT_FLAVOR_C };

struct rat_open_frame {
    uint64_t since_ns, inner_ns;
    uint32_t frame; /* of the catalog */
    uint32_t tag;   /* the visitor's own */
    enum rat_flavor flavor;
    bool before;    /* open since before we knew it: no call was seen */
};

struct rat_replay_context {
    struct rat_replay_session *session;
    uint32_t id;
    uint32_t tag; /* the visitor's own; 0 for a context it has not seen */
    /* from the dictionary; name is the catalog's */
    bool told;
    uint32_t kind, parent, name, entry_lane;
    uint64_t os_tid, seen_ticks;
    /* replay */
    uint32_t lane; /* bound by its first event; 0 = none yet */
    bool known;    /* a snapshot was seen since it began */
    bool lossy;    /* events of it may be missing since its last snapshot */
    bool in_synced;
    uint64_t loss_ns, first_ns, last_ns;
    struct rat_open_frame *stack;
    size_t depth, capacity;
    size_t paused; /* frames that left by rat_replay_pause and are to enter again */
    struct rat_replay_context *next_synced;
};

struct rat_replay_event {
    const struct rat_replay_session *session;
    uint64_t ns;
    enum rat_event_kind kind;
    uint32_t lane, context;
    uint32_t frame;  /* call, c_call, gate: of the catalog */
    uint32_t count;  /* unwind: frames; snapshot: base frames */
    uint32_t reason; /* end, snapshot; note: enum rat_note; gate: enum rat_gate_state */
    uint32_t value;  /* note; gate: share */
    uint64_t numbers[RAT_COST_WORDS]; /* cost: its payload; gate: site, left out */
    const uint32_t *frames; /* snapshot, bottom first, of the catalog; valid during the callback */
    uint32_t frame_count;
};

/* How a frame ended. */
enum rat_left {
    RAT_LEFT_RETURN,
    RAT_LEFT_UNWIND,       /* without a return: SystemStackError and the like */
    RAT_LEFT_STOP,         /* recording stopped, */
    RAT_LEFT_CONTEXT_DIED, /* its fiber or thread ended, */
    RAT_LEFT_FORK,         /* or this was the child's copy */
    RAT_LEFT_READER,       /* closed by the reader: its return was lost */
    RAT_LEFT_OPEN,         /* the data ends before it */
};

/* Any may be NULL. A status other than RAT_OK ends the replay with it. */
struct rat_visitor {
    void *user;
    enum rat_status (*event)(void *user, const struct rat_replay_event *event);
    /* `frame` is about to go on the stack (its caller is context->stack[depth - 1]); it may set frame->tag. */
    enum rat_status (*enter)(void *user, struct rat_replay_context *context, struct rat_open_frame *frame);
    void (*leave)(void *user, struct rat_replay_context *context, const struct rat_open_frame *frame,
                  uint64_t total_ns, uint64_t self_ns, enum rat_left how);
    /* Events of this lane are missing here. */
    void (*loss)(void *user, const struct rat_replay_session *session, uint32_t lane, uint64_t ns);
};

struct rat_replay;

/* Read `sources` (a copy is taken; paths and bytes stay the caller's and must live as long). memory_max 0 = default. */
RAT_MUST_CHECK enum rat_status rat_replay_new(const struct rat_source *sources, size_t count, size_t memory_max,
                                              const struct rat_visitor *visitor, struct rat_replay **out);
void rat_replay_free(struct rat_replay *replay);

/* Go on for about `events` events. RAT_OK: there may be more. RAT_END: all was read and every frame has left. Anything
 * else: it cannot go on, rat_replay_failed says where. */
RAT_MUST_CHECK enum rat_status rat_replay_step(struct rat_replay *replay, uint64_t events);

/* For what is still being recorded: a replay made without sources is fed instead of stepped. Plays all chunks in `bytes`,
 * which are one segment's with the next ones; frames stay open. */
RAT_MUST_CHECK enum rat_status rat_replay_feed(struct rat_replay *replay, const uint8_t *bytes, size_t length);

/* Cut time at `ns` (CLOCK_MONOTONIC): every open frame leaves, as RAT_LEFT_OPEN, and with resume enters again, as open
 * since before; its time then counts from the cut. Between the two the visitor may be given a new beginning: contexts
 * have no tag. Events of before that come later are of the moment of the cut. */
void rat_replay_pause(struct rat_replay *replay, uint64_t ns);
RAT_MUST_CHECK enum rat_status rat_replay_resume(struct rat_replay *replay);

/* The path of the file that could not be read, or NULL. */
const char *rat_replay_failed(const struct rat_replay *replay);

/* What was met so far. */
struct rat_allowance *rat_replay_allowance(struct rat_replay *replay);
struct rat_catalog *rat_replay_catalog(struct rat_replay *replay);
size_t rat_replay_session_count(const struct rat_replay *replay);
const struct rat_replay_session *rat_replay_session(const struct rat_replay *replay, size_t index);
size_t rat_replay_source_count(const struct rat_replay *replay);
const struct rat_source *rat_replay_source(const struct rat_replay *replay, size_t index);

/* A fiber's thread, a thread itself; a context without a dictionary entry stands for itself. */
struct rat_replay_context *rat_replay_thread(struct rat_replay_context *context);

#endif
