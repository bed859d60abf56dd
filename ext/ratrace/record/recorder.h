/* recorder.h - one lane's recorder: whose stack it is, what is open on it, and what the stream is told.
 *
 * Stack truth. The producer keeps a shadow stack per context (fiber). An entry is {frame word, frame id, kind}; a
 * frame's word is the address of its control frame, so deeper frames have lower words (vm notes in ruby/rb_hook.c).
 *   call, word k     every entry with a word <= k is stale: its frame is gone without an event (SystemStackError, a
 *                    C call that overflowed). They are dropped and told as "unwind n"; then k is pushed.
 *   return, word k   the top has word k: plain return, which needs no id. Deeper: unwind, then return. Nowhere:
 *                    unmatched, and the stack stays.
 * Entry 0 is the floor (word = all ones: never stale, never equal; 1 while the base is due, so that the first event
 * goes the cold way). Above it lie the base frames, those open when
 * recording started, of unknown kind and word: they carry the word of the last event that was counted against them,
 * plus one. So the test "word <= k" that finds stale entries also finds the events that come from above the base's
 * last known place, and only those pay for a count of the VM's frames (rb_stack.c).
 *
 * The shadow changes after the event is told, so that a snapshot taken in between shows the stack before the event.
 * Losing events damages the stream, never the shadow: every new interval starts with a snapshot of the context that
 * records in it, and a context that comes later gets its own.
 *
 * Memory:  the recorder lies in a page of its own that the kernel wipes on fork (MADV_WIPEONFORK), so a child finds
 *          `ec` 0, goes the cold way, and sees that nothing here is its own. Contexts are native memory.
 * Threads: the lane's producer only; rat_context_release also from a GC, which can run in any of its hooks.
 * Fork:    rat_recorder_reset in the child.
 */
#ifndef RAT_RECORD_RECORDER_H
#define RAT_RECORD_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "record/dictionary.h"
#include "record/event.h"
#include "record/lane.h"

#define RAT_SHADOW_DEPTH_MAX (UINT32_C(1) << 22)
#define RAT_WORD_FLOOR UINTPTR_MAX

/* Id of a frame that is kept on the shadow and not recorded (excluded by a filter). */
#define RAT_FRAME_HIDDEN 0u

struct rat_entry {
    uintptr_t word;
    uint32_t id;
    uint32_t kind; /* RAT_FRAME_INSTANCE, RAT_FRAME_C_INSTANCE or RAT_FRAME_BASE */
};

struct rat_context {
    struct rat_entry *entries; /* [0] = floor */
    struct rat_entry *top;     /* valid while this is not the recorder's current context */
    struct rat_entry *limit;   /* last entry that fits */
    rat_context_id id;         /* 0 = not told to the dictionary yet */
    uint32_t base;             /* entries[1..base] were open at start */
    bool base_due;             /* existed before recording; its base is not taken yet */
    uint64_t epoch;            /* recorder's epoch of its last snapshot */
    uint32_t too_deep;         /* a stack this deep did not fit into a whole slot; 0 = none */
    uint32_t doubt;            /* calls out of old frames that are still to be checked; 0 = none */
    uint32_t doubt_depth;      /* entries that were open when the doubt arose */
    struct rat_context *next, *prev; /* the recorder's list of living contexts */
    struct rat_context *queued;      /* dead, waiting to be told */
};

/* The id of a context whose end was told. The context itself is gone: a process makes many. */
struct rat_retired {
    uint64_t ended_seq; /* interval that holds its end event */
    rat_context_id id;
};

struct rat_recorder {
    /* hot */
    uintptr_t ec;             /* whose events these are; 0 = look it up */
    struct rat_entry *top;    /* of the current context */
    struct rat_entry *limit;  /* at or past it: the cold way; the context's limit, or its floor while it is in doubt */
    struct rat_lane_producer lane;
    uint32_t audit;           /* calls until the next check by the public calls */
    enum rat_clock_kind clock;
    /* cold */
    struct rat_context *context;
    uint64_t epoch;           /* intervals opened so far; a context with another epoch owes a snapshot */
    uint32_t lane_number;     /* 0 = wiped or not open */
    bool scoped;              /* only some methods are traced: the shadow is those, and there are no bases */
    struct rat_dict *dict;
    /* called before a new interval's snapshot: compare the shadow with the VM's frames; entries removed */
    uint32_t (*verify)(struct rat_recorder *recorder, void *owner);
    void *owner;
    struct rat_context *living;
    struct rat_retired *retired; /* a ring, oldest first; ids to be reused once their interval is flushed */
    uint32_t retired_first, retired_count, retired_room; /* room: 0 or a power of two */
    _Atomic(struct rat_context *) dead; /* pushed by rat_context_release */
    uint64_t unwound, unmatched, repaired, switches; /* for stats */
    uint64_t *scratch;           /* payload of a snapshot */
    size_t scratch_words;
};

/* A recorder with an open lane. `recorder` is zeroed memory. */
void rat_recorder_init(struct rat_recorder *recorder, uint32_t lane_number, struct rat_dict *dict,
                       enum rat_clock_kind clock);

/* Forget everything: after stop, or in a forked child. Contexts belong to their fibers and are forgotten one by one
 * (rat_context_forget) when they come again. */
void rat_recorder_reset(struct rat_recorder *recorder);

/* A context for a fiber; NULL = out of memory. `fresh`: its stack is known to be empty. Not in any recorder yet. */
struct rat_context *rat_context_new(bool fresh);

/* The context outlived its recorder or its process: nothing of its shadow can be believed. `fresh`: nor is there
 * anything below to be taken for a base, because only some methods are traced. */
void rat_context_forget(struct rat_context *context, bool fresh);

/* The fiber is gone. Only queues; also from a GC. `recorder` NULL: no recorder any more, the memory is freed. */
void rat_context_release(struct rat_context *context, struct rat_recorder *recorder);

/* Make `context` current and tell the stream. Its dictionary entry (kind fiber, parent, ...) is `entry`, used when the
 * context has no id yet. Out of ids or memory: events of it are dropped as out_of_memory; false. */
bool rat_recorder_switch(struct rat_recorder *recorder, struct rat_context *context,
                         const struct rat_context_entry *entry, uint64_t now);

/* Drop the entries above the base whose frames are gone: those with a word <= `word`. How many. */
uint32_t rat_recorder_drop_stale(struct rat_recorder *recorder, uintptr_t word, uint64_t now);

/* Frames have vanished without events, and more may: an overflow unwinds frame by frame and runs ensure bodies on the
 * way, which stand where their method's callee stood. Until RAT_DOUBT_CALLS calls out of frames that were open now were
 * found true, every call takes the cold way. */
#define RAT_DOUBT_CALLS 256u
void rat_recorder_doubt(struct rat_recorder *recorder);

/* Is a call now one out of such a frame? Then its stack is to be checked, and the outcome said. */
bool rat_recorder_doubts(const struct rat_recorder *recorder);
void rat_recorder_checked(struct rat_recorder *recorder, bool was_true);

/* One call: event told, entry pushed. id RAT_FRAME_HIDDEN: pushed, not told. */
void rat_recorder_call(struct rat_recorder *recorder, enum rat_event_kind event, uintptr_t word, uint32_t id,
                       enum rat_frame_kind kind, uint64_t now);

/* What a hidden frame itself calls in C is hidden with it (not what a block calls that it yields to). */
static inline bool rat_recorder_is_in_hidden(const struct rat_recorder *recorder, uintptr_t caller)
{
    return recorder->top->word == caller && recorder->top->id == RAT_FRAME_HIDDEN;
}

/* The newest entry above the base with this word, or with this frame id: its depth from the top (0 = top), or -1. */
int64_t rat_recorder_find(const struct rat_recorder *recorder, uintptr_t word);
int64_t rat_recorder_find_id(const struct rat_recorder *recorder, uint32_t id);

/* End the entry `depth` below the top: what lies above is unwound. Tells `event` (RETURN or C_RETURN). */
void rat_recorder_return(struct rat_recorder *recorder, enum rat_event_kind event, uint32_t depth, uint64_t now);

/* A return that belongs to no entry. */
void rat_recorder_unmatched(struct rat_recorder *recorder, uint64_t now);

/* Drop the top `count` entries without returns. */
void rat_recorder_unwind(struct rat_recorder *recorder, uint32_t count, uint64_t now);

/* The current context's shadow cannot be believed any more: empty, its base due. */
void rat_recorder_restart(struct rat_recorder *recorder);

/* The base of the current context is taken now: its floor is solid. Then rat_recorder_push_base, bottom first. */
void rat_recorder_begin_base(struct rat_recorder *recorder);

/* Push a base frame (while the base is being taken: nothing lies above it). False = no memory. */
bool rat_recorder_push_base(struct rat_recorder *recorder, uint32_t id);

/* The base was counted at an event with this word: later events at or below it need no count. */
void rat_recorder_settle_base(struct rat_recorder *recorder, uintptr_t word);

/* Entries above the floor, and above the base. */
uint32_t rat_recorder_depth(const struct rat_recorder *recorder);
uint32_t rat_recorder_above_base(const struct rat_recorder *recorder);

/* Entries were removed from the middle of the current shadow: tell it whole (reason REPAIR). */
void rat_recorder_repair(struct rat_recorder *recorder, uint64_t now);

/* Events about ratrace itself. `payload` is what event.h says of the kind. */
void rat_recorder_note(struct rat_recorder *recorder, enum rat_note note, uint32_t value, uint64_t now);
void rat_recorder_tell(struct rat_recorder *recorder, enum rat_event_kind kind, const uint64_t *payload,
                       uint32_t words, uint64_t now);

/* Tell the ends of contexts that died since the last call. Cheap when there are none. */
void rat_recorder_bury(struct rat_recorder *recorder, uint64_t now);

/* Every context with open frames ends with `reason`. */
void rat_recorder_end_all(struct rat_recorder *recorder, enum rat_end_reason reason, uint64_t now);

#endif
