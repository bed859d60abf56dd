/* lane.h - two slots: the producer fills the active one, the serializer holds the other.
 *
 * Actors.     One producer (whoever holds the GVL of the lane's Ractor, inside a hook), one serializer (our thread).
 * Constraint. The producer never waits, never fences, never makes a system call; it drops, and counts.
 *
 * Each slot has one word of each side, and each word has one writer for ever:
 *
 *     W  producer     sequence:16 | events:24 | words:23 | busy:1      in the mapped memory, own cache line
 *     G  serializer   sequence:63 | held:1                             own cache line
 *
 *     enter   store W = w | busy                                       announce
 *             load G                                                   look
 *             held, or a newer sequence? store W = w; slow path
 *     record  store the words, payload first
 *     leave   store W = w + (0, 1, n), release                         publish cursor and clear busy in one store
 *
 *     flip    1  G[b] = {seq + 1, free}     b was drained and its chunk appended
 *             2  G[a] = {seq, held}
 *             3  membarrier, one for all lanes
 *             4  wait, bounded, until W[a] is not busy; that load also says how much there is
 *             5  drain, encode, append, store flushed_seq, a and b change places
 *
 * From the producer's side. It tries the slot it used last, then the other. Between 1 and 2 both are free, which is
 *   harmless because it stays where it is until that slot is held; with a fixed order it could record a newer event
 *   in an older chunk. A held slot it announced itself in by chance is left at once, without a word stored.
 * From the serializer's side. After the fence of step 3 each producer either sees the hold, or its announce is visible
 *   in step 4. A wait that is given up keeps the hold: the producer, perhaps preempted inside, finishes in a and goes
 *   on in b, so nothing is lost and the only thing left is to wait again. Undoing, restarting or switching loses events.
 * No empty flips. A slot that shows no words of the current sequence is left alone; otherwise a 16-bit sequence could
 *   run 65,536 ahead of an idle slot and look current. W.sequence must be G.sequence or G.sequence - 2, else the lane
 *   is disabled before the slot is touched.
 * A slot is given out again (step 1 of the next flip) only after its chunk's append has returned.
 * Sealing. After the first drop a slot takes nothing more until it is flipped, so that a loss is always the tail of an
 *   interval and the next interval starts with snapshots. A slot that is still empty would never be flipped: the next
 *   turn opens its interval anew, and what was dropped came before it.
 * Fallback. Without membarrier, and under TSan, announce and hold are seq_cst stores and the look is a seq_cst load.
 *   A membarrier that fails later disables the lane, and that slot is never drained: its events are counted as lost.
 *
 * The model of all this, with the mutations that must fail, is test/model/lane.pml.
 *
 * Memory:  slots and words lie in the session's mapping (layout.h); the two structs below belong to their side.
 * Threads: rat_lane_put, _turn, _append, _drop by the producer; rat_lane_flip_* by the serializer.
 * Fork:    the child must touch neither: the mapping is not there. See recorder.h.
 */
#ifndef RAT_RECORD_LANE_H
#define RAT_RECORD_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fence.h"
#include "base/status.h"
#include "base/testpoint.h"
#include "record/event.h"
#include "record/layout.h"

#define RAT_W_BUSY UINT64_C(1)
#define RAT_W_WORD (UINT64_C(1) << 1)
#define RAT_W_EVENT (UINT64_C(1) << 24)
#define RAT_W_SEQ_SHIFT 48
#define RAT_W_WORDS_MAX ((1u << 23) - 1)
#define RAT_W_EVENTS_MAX ((1u << 24) - 1)

static inline uint32_t rat_w_words(uint64_t w)
{
    return (uint32_t)(w >> 1) & RAT_W_WORDS_MAX;
}
static inline uint32_t rat_w_events(uint64_t w)
{
    return (uint32_t)(w >> 24) & RAT_W_EVENTS_MAX;
}
static inline uint16_t rat_w_seq(uint64_t w)
{
    return (uint16_t)(w >> RAT_W_SEQ_SHIFT);
}

#define RAT_G_HELD UINT64_C(1)
static inline uint64_t rat_g(uint64_t sequence, bool held)
{
    return sequence << 1 | held;
}

/* The producer's half. All plain: one producer. */
struct rat_lane_producer {
    struct rat_slot_head *head; /* slot used last ... */
    uint64_t *words;            /* ... its memory, */
    uint64_t w;                 /* ... its W as last stored, */
    uint64_t g;                 /* ... and the G it was opened with: anything else there is news */
    uint64_t ticks;             /* time of the lane's last event */
    uint32_t room;              /* words the slot takes; 0 = sealed or no lane */
    uint32_t current;           /* 0 or 1 */
    uint32_t capacity;          /* words in a slot */
    bool strong;                /* seq_cst fallback */
    uint64_t other_w;           /* W of the other slot as last stored */
    uint64_t stored;            /* S before the current interval */
    struct rat_lane_head *lane;
    uint64_t *slot_words[2];
#ifdef RAT_TEST
    uint64_t attempts;          /* rat_lane_put and _append calls that are not retries; S + sum of D must be equal */
#endif
};

/* The serializer's half. */
struct rat_lane_consumer {
    struct rat_lane_head *lane;
    uint64_t *slot_words[2];
    uint64_t sequence;  /* of the active slot */
    uint32_t active;
    uint32_t capacity;
    bool strong;
    bool pending;       /* a flip gave up waiting; its hold stands */
    bool drained;       /* flip_wait handed out a drain that flip_done has not settled */
};

/* Make a lane in mapped memory ready: slot 0 free with sequence 1, slot 1 held. Before any producer. `slots` = 2 ×
 * slot_bytes of mapped, reserved memory, touched here page by page. `anchor`: now. */
void rat_lane_open(struct rat_lane_head *lane, uint64_t *slots, uint32_t slot_bytes, const struct rat_anchor *anchor,
                   struct rat_lane_producer *producer, struct rat_lane_consumer *consumer, enum rat_fence_kind fence);

/* A producer without a lane: every put fails into the slow path, every append is "no lane". */
void rat_lane_detach(struct rat_lane_producer *producer);

/* ---------------------------------------------------------------- producer */

/* Labels in the assembly, for test/hotpath/check; nothing in the gem. They are comments to the CPU and to the compiler
 * an instruction that stays where it is among the stores to memory. */
#ifdef RAT_HOTPATH_MARKS
#define RAT_HOTPATH_MARK(name) __asm__ volatile("rat_hotpath_" name "_%=:" ::: "memory")
#else
#define RAT_HOTPATH_MARK(name) ((void)0)
#endif

static inline __attribute__((always_inline)) void rat_lane_announce(struct rat_slot_head *head, uint64_t w, bool strong)
{
#ifdef RAT_MUTATE_WEAK_PRODUCER
    strong = false;
#endif
    if (strong) {
        atomic_store_explicit(&head->w, w, memory_order_seq_cst);
    } else {
        atomic_store_explicit(&head->w, w, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps announce before look; the CPU need not */
    }
}

static inline __attribute__((always_inline)) uint64_t rat_lane_look(struct rat_slot_head *head, bool strong)
{
    /* acquire: what the serializer did to the slot before it gave it out is done */
    return atomic_load_explicit(&head->g, strong ? memory_order_seq_cst : memory_order_acquire);
}

/* Announce with W = w, then look: what G shows. */
static inline __attribute__((always_inline)) uint64_t rat_lane_knock(struct rat_slot_head *head, uint64_t w, bool strong)
{
#ifdef RAT_MUTATE_COMPILER_REORDER
    uint64_t g = rat_lane_look(head, strong);
    RAT_TEST_POINT("lane.announced");
    rat_lane_announce(head, w | RAT_W_BUSY, strong);
    return g;
#else
    rat_lane_announce(head, w | RAT_W_BUSY, strong);
    RAT_TEST_POINT("lane.announced");
    return rat_lane_look(head, strong);
#endif
}

/* Inside, before the words are stored: nothing, except in the mutations that say too early that they are. */
static inline __attribute__((always_inline)) void rat_lane_inside(struct rat_slot_head *head, uint64_t w, uint64_t next)
{
    (void)head, (void)w, (void)next;
#ifdef RAT_MUTATE_EARLY_CLEAR
    atomic_store_explicit(&head->w, w, memory_order_release);
#endif
#ifdef RAT_MUTATE_PUBLISH_FIRST
    atomic_store_explicit(&head->w, next, memory_order_release);
#endif
    RAT_TEST_POINT("lane.entered");
}

/* Record one plain event (rat_event_word(kind, id)) at `now`. True: stored. False: nothing happened; take the slow
 * way (rat_lane_turn, snapshots, rat_lane_append). `strong` must be producer->strong; it is an argument so that the
 * fence-free copy contains no fence. Never blocks, calls, allocates or raises. */
static inline __attribute__((always_inline)) bool rat_lane_put(struct rat_lane_producer *producer, uint64_t event,
                                                               uint64_t now, const bool strong)
{
    uint64_t delta = now - producer->ticks;
    struct rat_slot_head *head = producer->head;
    uint64_t w = producer->w;
    uint32_t at = rat_w_words(w);
    if (__builtin_expect(delta > RAT_EVENT_DELTA_MAX, 0) || __builtin_expect(at >= producer->room, 0))
        return false;
    RAT_HOTPATH_MARK("enter");
    if (__builtin_expect(rat_lane_knock(head, w, strong) != producer->g, 0)) {
        atomic_store_explicit(&head->w, w, memory_order_release);
        return false;
    }
    rat_lane_inside(head, w, w + RAT_W_EVENT + RAT_W_WORD);
    producer->words[at] = event | delta << RAT_EVENT_DELTA_SHIFT;
    producer->w = w = w + RAT_W_EVENT + RAT_W_WORD;
    producer->ticks = now;
    /* release: the serializer's acquire of W sees the event; after a kill the file shows the word before the cursor */
    atomic_store_explicit(&head->w, w, memory_order_release);
    RAT_HOTPATH_MARK("leave");
#ifdef RAT_TEST
    producer->attempts++;
#endif
    return true;
}

enum rat_turn {
    RAT_TURN_SAME,   /* the slot in hand is still free */
    RAT_TURN_OPENED, /* another interval, or one still empty: it knows no context yet, write a snapshot first */
    RAT_TURN_NONE,   /* no slot: drop (cause in *cause) */
};

/* Have a free slot in hand, opening a new interval if need be. */
enum rat_turn rat_lane_turn(struct rat_lane_producer *producer, uint64_t now, enum rat_drop_cause *cause);

enum rat_append {
    RAT_APPEND_STORED,
    RAT_APPEND_TURN, /* the slot was taken meanwhile: turn and try again */
    RAT_APPEND_FULL, /* no room: drop with RAT_DROP_SLOT_FULL */
};

/* Record one event of any kind: `event` and, for a rich one, its payload (`words` of it; the event's id is set to
 * that). A delta too large for the word goes into a gap prefix; time that runs backwards is clamped to 0. */
enum rat_append rat_lane_append(struct rat_lane_producer *producer, uint64_t event, const uint64_t *payload,
                                uint32_t words, uint64_t now);

/* Count one dropped event and seal the slot. Without a lane nothing can be counted here. */
void rat_lane_drop(struct rat_lane_producer *producer, enum rat_drop_cause cause, uint64_t now);

/* Events stored so far. */
uint64_t rat_lane_stored(const struct rat_lane_producer *producer);

/* ---------------------------------------------------------------- serializer */

/* Words in the active slot as far as they can be seen without a hold; may miss the newest. */
uint32_t rat_lane_fill(const struct rat_lane_consumer *consumer);

/* Steps 1 and 2. True: a fence is due, then rat_lane_flip_wait. False: nothing recorded, or the lane is disabled.
 * `anchor` becomes the opening anchor of the slot given out. A drain not yet settled makes this false. */
bool rat_lane_flip_begin(struct rat_lane_consumer *consumer, const struct rat_anchor *anchor);

struct rat_drain {
    const uint64_t *words;
    uint32_t count;      /* words */
    uint32_t events;
    uint64_t sequence;
    const struct rat_slot_head *head; /* base_ticks, opened totals, opening anchor */
    uint64_t closed_drop[RAT_DROP_CAUSES];
    uint64_t drop_first_ticks, drop_last_ticks;
};

enum rat_flip { RAT_FLIP_DRAIN, RAT_FLIP_PENDING, RAT_FLIP_BROKEN };

/* Step 4, after rat_fence_all returned RAT_OK. DRAIN: `out` is the serializer's until rat_lane_flip_done. PENDING: ask
 * again next period (begin says true at once, no fence harms). BROKEN: the lane was disabled, do not read the slot. */
enum rat_flip rat_lane_flip_wait(struct rat_lane_consumer *consumer, struct rat_drain *out);

/* Step 5: the chunk's append has returned (`appended`), or it will never be written. */
void rat_lane_flip_done(struct rat_lane_consumer *consumer, bool appended);

/* The fence failed, or an invariant: nobody records or drains here any more. Either side. */
void rat_lane_disable(struct rat_lane_head *lane, enum rat_lost_cause cause);

#endif
