/* event.h - what lies in a slot: aligned 64-bit words.
 *
 *   bits 63..30  delta   ticks since the lane's previous event (34 bits: 5.7 s at 3 GHz)
 *   bits 29..24  kind    enum rat_event_kind
 *   bits 23..0   id      what the kind says; for a rich event the number of payload words that follow
 *
 * A plain event is one word. A rich event is a header word and its payload. RAT_EVENT_GAP is not an event: it is a
 * prefix (header, one payload word) that adds a larger delta to the event behind it, stored and published with it.
 * How many words and events a slot holds is said by the producer's word (lane.h), never by the words themselves.
 *
 * In a file the kinds have the same numbers (Body.kind), the deltas are Body.gap, and GAP prefixes are gone.
 */
#ifndef RAT_RECORD_EVENT_H
#define RAT_RECORD_EVENT_H

#include <stdbool.h>
#include <stdint.h>

/* kind, number, name in `ratrace print`; numbers are part of the file format and never change.
 *   call, c_call      id = frame; pushes it
 *   return, c_return  pops the top frame; the producer has compared it
 *   unwind            id = frames dropped from the top without a return event
 *   unmatched         a return that belongs to no open frame; pops nothing
 *   switch            id = context; what follows is that context's
 *   gap               not an event (above)
 *   snapshot          rich: [context:32 | depth:32] [base:32 | reason:32] then depth entries of [frame:24 | kind:8],
 *                     two to a word, bottom first, low half first. The context's whole stack; implies switch
 *   end               rich: [context:32 | reason:32]; every open frame of that context ends
 *   note              rich: [note:32 | value:32]; a part of ratrace changed its way of working
 *   gate              rich: [site:32 | frame:32] [state:32 | share:32] [left_out:64]. With scoped tracing: calls of this
 *                     method body are recorded or only counted from here on. left_out: calls of it that were counted and
 *                     not recorded since the recording began. share: ratrace's own CPU time in parts per million of the
 *                     process's, which was the reason. A site is a method body's number in this process life
 *   cost              rich: [hooks_ns:64] [serializer_ns:64] [process_ns:64] [gvl_ns:64] [events:64], all since the
 *                     recording began. hooks: CPU time in ratrace's hooks beyond what the VM takes to call them,
 *                     estimated from samples; serializer: CPU time of its thread; process: CPU time of all threads;
 *                     gvl: time ratrace held the GVL, hooks included
 */
#define RAT_EVENT_LIST(X)                                                                          \
    X(CALL, 1, "call")                                                                             \
    X(RETURN, 2, "return")                                                                         \
    X(C_CALL, 3, "c_call")                                                                         \
    X(C_RETURN, 4, "c_return")                                                                     \
    X(UNWIND, 5, "unwind")                                                                         \
    X(UNMATCHED, 6, "unmatched")                                                                   \
    X(SWITCH, 7, "switch")                                                                         \
    X(GAP, 31, "gap")                                                                              \
    X(SNAPSHOT, 32, "snapshot")                                                                    \
    X(END, 33, "end")                                                                              \
    X(NOTE, 34, "note")                                                                            \
    X(GATE, 35, "gate")                                                                            \
    X(COST, 36, "cost")

enum rat_event_kind {
#define RAT_EVENT_KIND(code, number, name) RAT_EVENT_##code = number,
    RAT_EVENT_LIST(RAT_EVENT_KIND)
#undef RAT_EVENT_KIND
};

#define RAT_EVENT_ID_BITS 24
#define RAT_EVENT_KIND_BITS 6
#define RAT_EVENT_DELTA_SHIFT (RAT_EVENT_ID_BITS + RAT_EVENT_KIND_BITS)
#define RAT_EVENT_ID_MAX ((1u << RAT_EVENT_ID_BITS) - 1)
#define RAT_EVENT_DELTA_MAX ((UINT64_C(1) << (64 - RAT_EVENT_DELTA_SHIFT)) - 1)

/* Kinds from here on carry payload; a reader steps over kinds it does not know by their length. */
#define RAT_EVENT_RICH 31

/* Frame id of methods past the dictionary's cap: "(dictionary full)". 0 = no frame. */
#define RAT_FRAME_FULL 1u

/* Why a context's open frames end (payload of RAT_EVENT_END), or why a snapshot was taken. */
enum rat_end_reason { RAT_END_STOP = 1, RAT_END_CONTEXT_DIED = 2, RAT_END_FORK = 3 };
enum rat_snapshot_reason { RAT_SNAPSHOT_START = 1, RAT_SNAPSHOT_SLOT = 2, RAT_SNAPSHOT_REPAIR = 3 };

/* RAT_EVENT_NOTE: frame words were refused in mid-run, the clock fell back, the canary calls were not seen (value: what
 * is blind, a sum of enum rat_blind; 0 = all is seen again), ... */
enum rat_note {
    RAT_NOTE_PUBLIC_PATH = 1,
    RAT_NOTE_CLOCK_FALLBACK = 2,
    RAT_NOTE_DEPTH_LIMIT = 3,
    RAT_NOTE_BLIND = 4,
};

enum rat_blind {
    RAT_BLIND_CALL = 1,
    RAT_BLIND_RETURN = 2,
    RAT_BLIND_C_CALL = 4,
    RAT_BLIND_C_RETURN = 8,
    RAT_BLIND_SCRIPT_COMPILED = 16, /* scoped tracing does not learn of new files */
};

/* RAT_EVENT_GATE. COUNT changes nothing: it tells what was left out so far. */
enum rat_gate_state { RAT_GATE_CLOSED = 1, RAT_GATE_OPEN = 2, RAT_GATE_COUNT = 3 };
#define RAT_GATE_WORDS 3
#define RAT_COST_WORDS 5

/* Kind of a frame in the dictionary and in a snapshot; numbers are those of ratrace.v1.FrameKind. */
enum rat_frame_kind {
    RAT_FRAME_INSTANCE = 1,    /* Foo#bar */
    RAT_FRAME_SINGLETON = 2,   /* Foo.bar */
    RAT_FRAME_C_INSTANCE = 3,  /* the same, written in C */
    RAT_FRAME_C_SINGLETON = 4,
    RAT_FRAME_BASE = 5,        /* open when recording started; method, block or C function: unknown */
    RAT_FRAME_SPECIAL = 6,     /* "(dictionary full)" and the like */
};

/* Pairs and snapshot entries are written high part first: [a:32 | b:32] has a in the high half; [frame:24 | kind:8] has
 * the frame in the high bits. Entry kinds: RAT_FRAME_INSTANCE for any method, RAT_FRAME_C_INSTANCE for any C function,
 * RAT_FRAME_BASE for a frame that was open at start. */
static inline uint64_t rat_event_pair(uint32_t high, uint32_t low)
{
    return (uint64_t)high << 32 | low;
}

static inline uint32_t rat_event_entry(uint32_t frame, enum rat_frame_kind kind)
{
    return frame << 8 | (uint32_t)kind;
}

static inline uint64_t rat_event_word(enum rat_event_kind kind, uint32_t id)
{
    return ((uint64_t)kind << RAT_EVENT_ID_BITS) | id;
}

static inline enum rat_event_kind rat_event_kind(uint64_t word)
{
    return (enum rat_event_kind)((word >> RAT_EVENT_ID_BITS) & ((1u << RAT_EVENT_KIND_BITS) - 1));
}

static inline uint32_t rat_event_id(uint64_t word)
{
    return (uint32_t)word & RAT_EVENT_ID_MAX;
}

static inline uint64_t rat_event_delta(uint64_t word)
{
    return word >> RAT_EVENT_DELTA_SHIFT;
}

#endif
