#include "record/lane.h"

#include <sys/mman.h>

#define TURN_ROUNDS 4     /* looks at both slots before giving up; two cannot fail while flips are not empty */
#define WAIT_LOADS 2000u  /* about 10 us: the producer is inside for a few ns unless it was preempted */

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

static uint64_t w_empty(uint64_t sequence)
{
    return (sequence & 0xFFFF) << RAT_W_SEQ_SHIFT;
}

void rat_lane_open(struct rat_lane_head *lane, uint64_t *slots, uint32_t slot_bytes, const struct rat_anchor *anchor,
                   struct rat_lane_producer *producer, struct rat_lane_consumer *consumer, enum rat_fence_kind fence)
{
    uint32_t capacity = slot_bytes / sizeof *slots;
#ifdef MADV_POPULATE_WRITE
    (void)madvise(slots, 2 * (size_t)slot_bytes, MADV_POPULATE_WRITE); /* in one go; the host waits for this */
#endif
    for (size_t at = 0; at < 2u * capacity; at += 512) /* a page: written, because a read would map the zero page */
        slots[at] = 0;
    for (uint64_t s = 0; s < 2; s++) {
        struct rat_slot_head *head = &lane->slot[s];
        atomic_store_explicit(&head->w, w_empty(s + 1 - 2), memory_order_relaxed);
        head->opened = *anchor;
    }
    *consumer = (struct rat_lane_consumer){
        .lane = lane,
        .slot_words = {slots, slots + capacity},
        .sequence = 1,
        .capacity = capacity,
        .strong = fence == RAT_FENCE_SEQ_CST,
    };
    *producer = (struct rat_lane_producer){
        .head = &lane->slot[0],
        .words = slots,
        .w = w_empty(1 - 2),
        .g = rat_g(0, true), /* never shown: the first put turns and opens the interval */
        .ticks = anchor->ticks,
        .room = capacity,
        .capacity = capacity,
        .strong = consumer->strong,
        .other_w = w_empty(0),
        .lane = lane,
        .slot_words = {slots, slots + capacity},
    };
    atomic_store_explicit(&lane->slot[1].g, rat_g(0, true), memory_order_relaxed);
    atomic_store_explicit(&lane->slot[0].g, rat_g(1, false), memory_order_release);
    atomic_store_explicit(&lane->state, RAT_LANE_OPEN, memory_order_release);
}

void rat_lane_detach(struct rat_lane_producer *producer)
{
    *producer = (struct rat_lane_producer){.room = 0};
}

void rat_lane_disable(struct rat_lane_head *lane, enum rat_lost_cause cause)
{
    atomic_store_explicit(&lane->disabled_cause, cause, memory_order_relaxed);
    atomic_store_explicit(&lane->state, RAT_LANE_DISABLED, memory_order_release);
#ifdef RAT_ABORT_ON_BROKEN
    if (cause == RAT_LOST_INVARIANT)
        __builtin_trap();
#endif
}

/* ---------------------------------------------------------------- producer */

static void seal(struct rat_lane_producer *producer)
{
#ifndef RAT_MUTATE_NO_SEAL
    producer->room = 0;
#else
    (void)producer;
#endif
}

/* Does a free slot whose G is `ahead` of its W start an interval? The next one there, or the same as long as it is
 * empty: sealed while empty it would never be flipped, and never take anything again. */
static bool starts_interval(uint16_t ahead, uint64_t inside)
{
#if defined(RAT_MUTATE_SEAL_EMPTY)
    return ahead == 2 && inside < UINT64_MAX;
#elif defined(RAT_MUTATE_SEQ_UNCHECKED)
    return ahead != 0 || inside == 0;
#else
    return ahead == 2 || (ahead == 0 && inside == 0);
#endif
}

static void take_other(struct rat_lane_producer *producer)
{
    uint64_t w = producer->w;
    producer->w = producer->other_w;
    producer->other_w = w;
    producer->current ^= 1;
    producer->head = &producer->lane->slot[producer->current];
    producer->words = producer->slot_words[producer->current];
}

/* Inside (busy is announced, the slot is free) with a new sequence: start its interval. */
static void open_interval(struct rat_lane_producer *producer, uint64_t g, uint64_t stored, uint64_t now)
{
    struct rat_slot_head *head = producer->head;
    if (now > producer->ticks)
        producer->ticks = now;
    head->base_ticks = producer->ticks;
    head->opened_stored = stored;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        head->opened_drop[cause] = atomic_load_explicit(&producer->lane->drop[cause], memory_order_relaxed);
    producer->stored = stored;
    producer->g = g;
    producer->room = producer->capacity;
    producer->w = w_empty(g >> 1);
}

enum rat_turn rat_lane_turn(struct rat_lane_producer *producer, uint64_t now, enum rat_drop_cause *cause)
{
    if (producer->lane == NULL) {
        *cause = RAT_DROP_NO_LANE;
        return RAT_TURN_NONE;
    }
    if (atomic_load_explicit(&producer->lane->state, memory_order_relaxed) != RAT_LANE_OPEN) {
        *cause = RAT_DROP_LANE_DISABLED;
        seal(producer);
        return RAT_TURN_NONE;
    }
    /* S up to and with the interval that is current now; a change of interval starts from it */
    uint64_t stored = rat_lane_stored(producer);
    for (int looks = 0; looks < 2 * TURN_ROUNDS; looks++) {
#ifdef RAT_MUTATE_FIXED_ORDER
        if (looks % 2 == 0 && producer->current == 1)
            take_other(producer);
#endif
        struct rat_slot_head *head = producer->head;
        uint64_t g = rat_lane_knock(head, producer->w, producer->strong);
        if (!(g & RAT_G_HELD)) {
            enum rat_turn turn = RAT_TURN_SAME;
            uint64_t inside = rat_w_events(producer->w);
            uint16_t ahead = (uint16_t)((g >> 1) - rat_w_seq(producer->w));
            if (starts_interval(ahead, inside)) {
                open_interval(producer, g, stored, now);
                turn = RAT_TURN_OPENED;
            } else if (ahead == 0 && inside <= stored) {
                producer->g = g; /* left in an earlier turn, and still ours */
                producer->stored = stored - inside;
            } else {
                atomic_store_explicit(&head->w, producer->w, memory_order_release);
                rat_lane_disable(producer->lane, RAT_LOST_INVARIANT);
                *cause = RAT_DROP_LANE_DISABLED;
                return RAT_TURN_NONE;
            }
            RAT_TEST_POINT("turn.opened");
            atomic_store_explicit(&head->w, producer->w, memory_order_release);
            return turn;
        }
        RAT_TEST_POINT("turn.held");
        atomic_store_explicit(&head->w, producer->w, memory_order_release);
        take_other(producer);
        producer->g = rat_g(0, true); /* no interval in hand */
        producer->stored = stored;
    }
    *cause = RAT_DROP_CONTENDED;
    return RAT_TURN_NONE;
}

enum rat_append rat_lane_append(struct rat_lane_producer *producer, uint64_t event, const uint64_t *payload,
                                uint32_t words, uint64_t now)
{
    uint64_t delta = now > producer->ticks ? now - producer->ticks : 0;
    uint32_t gap = delta > RAT_EVENT_DELTA_MAX ? 2 : 0;
    uint64_t w = producer->w;
    uint32_t at = rat_w_words(w);
    uint64_t need = (uint64_t)gap + 1 + words;
    if (at + need > producer->room || words > RAT_EVENT_ID_MAX || rat_w_events(w) == RAT_W_EVENTS_MAX)
        return RAT_APPEND_FULL;
    struct rat_slot_head *head = producer->head;
    if (rat_lane_knock(head, w, producer->strong) != producer->g) {
        atomic_store_explicit(&head->w, w, memory_order_release);
        return RAT_APPEND_TURN;
    }
    rat_lane_inside(head, w, w + RAT_W_EVENT + RAT_W_WORD * need);
    if (gap) {
        producer->words[at] = rat_event_word(RAT_EVENT_GAP, 1);
        producer->words[at + 1] = delta;
        at += 2;
        delta = 0;
    }
    for (uint32_t i = 0; i < words; i++)
        producer->words[at + 1 + i] = payload[i];
    producer->words[at] = event | words | delta << RAT_EVENT_DELTA_SHIFT;
    producer->w = w + RAT_W_EVENT + RAT_W_WORD * need;
    if (now > producer->ticks)
        producer->ticks = now;
    atomic_store_explicit(&head->w, producer->w, memory_order_release);
#ifdef RAT_TEST
    producer->attempts++;
#endif
    return RAT_APPEND_STORED;
}

void rat_lane_drop(struct rat_lane_producer *producer, enum rat_drop_cause cause, uint64_t now)
{
    struct rat_lane_head *lane = producer->lane;
    if (lane == NULL)
        return;
#ifdef RAT_TEST
    producer->attempts++;
#endif
    uint64_t before = atomic_load_explicit(&lane->drop[cause], memory_order_relaxed);
    if (producer->room != 0)
        atomic_store_explicit(&lane->drop_first_ticks, now, memory_order_relaxed);
    atomic_store_explicit(&lane->drop_last_ticks, now, memory_order_relaxed);
    atomic_store_explicit(&lane->drop[cause], before + 1, memory_order_relaxed);
    seal(producer);
}

uint64_t rat_lane_stored(const struct rat_lane_producer *producer)
{
    return producer->stored + (producer->g & RAT_G_HELD ? 0 : rat_w_events(producer->w));
}

/* ---------------------------------------------------------------- serializer */

static uint64_t active_w(const struct rat_lane_consumer *consumer)
{
    return atomic_load_explicit(&consumer->lane->slot[consumer->active].w, memory_order_acquire);
}

static bool is_disabled(const struct rat_lane_consumer *consumer)
{
    return atomic_load_explicit(&consumer->lane->state, memory_order_acquire) != RAT_LANE_OPEN;
}

uint32_t rat_lane_fill(const struct rat_lane_consumer *consumer)
{
    uint64_t w = active_w(consumer);
    return rat_w_seq(w) == (uint16_t)consumer->sequence ? rat_w_words(w) : 0;
}

static void store_g(const struct rat_lane_consumer *consumer, uint32_t slot, uint64_t g)
{
    bool strong = consumer->strong;
#ifdef RAT_MUTATE_WEAK_SERIALIZER
    strong = false;
#endif
    /* release: the slot's drain and its chunk's append come before; in the fallback the hold is the fence, too */
    atomic_store_explicit(&consumer->lane->slot[slot].g, g, strong ? memory_order_seq_cst : memory_order_release);
}

/* The slot in hand is done with; the other becomes the active one. */
static void change_places(struct rat_lane_consumer *consumer)
{
    consumer->drained = false;
    consumer->active ^= 1;
    consumer->sequence++;
}

bool rat_lane_flip_begin(struct rat_lane_consumer *consumer, const struct rat_anchor *anchor)
{
    if (consumer->drained || is_disabled(consumer))
        return false;
    if (consumer->pending)
        return true;
#ifndef RAT_MUTATE_EMPTY_FLIPS
    if (rat_lane_fill(consumer) == 0)
        return false;
#endif
    uint32_t a = consumer->active, b = a ^ 1;
    consumer->lane->slot[b].opened = *anchor;
#ifdef RAT_MUTATE_SWAP_FLIP
    store_g(consumer, a, rat_g(consumer->sequence, true));
    RAT_TEST_POINT("flip.between");
    store_g(consumer, b, rat_g(consumer->sequence + 1, false));
#else
    store_g(consumer, b, rat_g(consumer->sequence + 1, false));
    RAT_TEST_POINT("flip.between");
    store_g(consumer, a, rat_g(consumer->sequence, true));
#endif
    RAT_TEST_POINT("flip.held");
    consumer->pending = true;
    return true;
}

enum rat_flip rat_lane_flip_wait(struct rat_lane_consumer *consumer, struct rat_drain *out)
{
    uint64_t w = active_w(consumer);
    for (uint32_t loads = 0; w & RAT_W_BUSY; loads++) {
        if (loads == WAIT_LOADS) {
#if defined(RAT_MUTATE_GIVEUP_UNDO)
            store_g(consumer, consumer->active, rat_g(consumer->sequence, false));
            consumer->pending = false;
#elif defined(RAT_MUTATE_GIVEUP_RESTART)
            consumer->pending = false;
#elif defined(RAT_MUTATE_GIVEUP_SWITCH)
            consumer->pending = false;
            change_places(consumer);
#endif
            return RAT_FLIP_PENDING;
        }
        PAUSE();
        w = active_w(consumer);
    }
    if (is_disabled(consumer))
        return RAT_FLIP_BROKEN;
    RAT_TEST_POINT("flip.out");
    uint16_t behind = (uint16_t)(consumer->sequence - rat_w_seq(w));
    uint32_t words = behind == 0 ? rat_w_words(w) : 0;
#ifdef RAT_MUTATE_SEQ_UNCHECKED
    if (behind != 0)
        behind = 2;
#endif
    if ((behind != 0 && behind != 2) || words > consumer->capacity || rat_w_events(w) > rat_w_words(w)) {
        rat_lane_disable(consumer->lane, RAT_LOST_INVARIANT);
        return RAT_FLIP_BROKEN;
    }
    const struct rat_slot_head *head = &consumer->lane->slot[consumer->active];
    *out = (struct rat_drain){
        .words = consumer->slot_words[consumer->active],
        .count = words,
        .events = words > 0 ? rat_w_events(w) : 0,
        .sequence = consumer->sequence,
        .head = head,
        .drop_first_ticks = atomic_load_explicit(&consumer->lane->drop_first_ticks, memory_order_relaxed),
        .drop_last_ticks = atomic_load_explicit(&consumer->lane->drop_last_ticks, memory_order_relaxed),
    };
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        out->closed_drop[cause] = atomic_load_explicit(&consumer->lane->drop[cause], memory_order_relaxed);
    consumer->pending = false;
    consumer->drained = true;
#ifdef RAT_MUTATE_RELEASE_FIRST
    change_places(consumer);
#endif
    return RAT_FLIP_DRAIN;
}

void rat_lane_flip_done(struct rat_lane_consumer *consumer, bool appended)
{
    _Atomic uint64_t *settled = appended ? &consumer->lane->flushed_seq : &consumer->lane->abandoned_seq;
    atomic_store_explicit(settled, consumer->sequence, memory_order_release);
#ifndef RAT_MUTATE_RELEASE_FIRST
    change_places(consumer);
#endif
}
