#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fence.h"
#include "base/testpoint.h"
#include "record/lane.h"

#define SLOT_WORDS 16u
#define START 1000u /* ticks when the lane was opened */

/* ---------------------------------------------------------------- a lane, and what its two sides do */

static struct rat_lane_head *lane;
static uint64_t *slots;
static struct rat_lane_producer producer;
static struct rat_lane_consumer consumer;
static struct rat_drain drain;
static enum rat_fence_kind fence;

static int open_lane(enum rat_fence_kind kind)
{
    struct rat_anchor anchor = {.ticks = START};
    fence = rat_fence_choose(kind);
    rat_fence_test_errno = 0;
    lane = aligned_alloc(64, sizeof *lane);
    slots = malloc(2 * SLOT_WORDS * sizeof *slots); /* ends at a red zone */
    if (lane == NULL || slots == NULL)
        return 1;
    memset(lane, 0, sizeof *lane);
    rat_lane_open(lane, slots, SLOT_WORDS * sizeof *slots, &anchor, &producer, &consumer, fence);
    return 0;
}

static int open_plain(void **state)
{
    (void)state;
    return open_lane(RAT_FENCE_MEMBARRIER);
}

static int open_strong(void **state)
{
    (void)state;
    return open_lane(RAT_FENCE_SEQ_CST);
}

static int close_lane(void **state)
{
    (void)state;
    rat_fence_test_errno = 0;
    rat_test_point = NULL;
    free(lane);
    free(slots);
    return 0;
}

static uint64_t call(uint32_t id)
{
    return rat_event_word(RAT_EVENT_CALL, id);
}

static bool put(uint32_t id, uint64_t now)
{
    return producer.strong ? rat_lane_put(&producer, call(id), now, true)
                           : rat_lane_put(&producer, call(id), now, false);
}

static enum rat_append append(uint32_t id, uint64_t now)
{
    return rat_lane_append(&producer, call(id), NULL, 0, now);
}

static enum rat_turn turn(uint64_t now)
{
    enum rat_drop_cause cause;
    return rat_lane_turn(&producer, now, &cause);
}

/* As the recorder does it, without snapshots. False: dropped. */
static bool record(uint32_t id, uint64_t now)
{
    enum rat_drop_cause cause = RAT_DROP_SLOT_FULL;
    if (put(id, now))
        return true;
    for (;;) {
        if (rat_lane_turn(&producer, now, &cause) == RAT_TURN_NONE)
            break;
        enum rat_append done = append(id, now);
        if (done == RAT_APPEND_STORED)
            return true;
        if (done == RAT_APPEND_FULL)
            break;
    }
    rat_lane_drop(&producer, cause, now);
    return false;
}

/* Events until one is dropped; how many were stored. */
static uint32_t record_until_full(uint32_t first_id)
{
    uint32_t stored = 0;
    while (record(first_id + stored, START))
        stored++;
    return stored;
}

static uint64_t flips_begun;

static bool flip_begin(void)
{
    struct rat_anchor anchor = {.ticks = START + ++flips_begun};
    return rat_lane_flip_begin(&consumer, &anchor);
}

static enum rat_flip flip_wait(void)
{
    assert_int_equal(rat_fence_all(fence), RAT_OK);
    return rat_lane_flip_wait(&consumer, &drain);
}

/* A whole flip but for the append: something was recorded and nobody is inside. */
static void flip(void)
{
    assert_true(flip_begin());
    assert_int_equal(flip_wait(), RAT_FLIP_DRAIN);
}

static void append_chunk(void)
{
    rat_lane_flip_done(&consumer, true);
}

static uint64_t sum(const uint64_t counts[RAT_DROP_CAUSES])
{
    uint64_t all = 0;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        all += counts[cause];
    return all;
}

/* The drain holds these call ids and no more. */
static void assert_drained(uint32_t first_id, uint32_t count)
{
    assert_int_equal(drain.events, count);
    assert_int_equal(drain.count, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(rat_event_kind(drain.words[i]), RAT_EVENT_CALL);
        assert_int_equal(rat_event_id(drain.words[i]), first_id + i);
    }
}

static void assert_balanced(void)
{
    uint64_t dropped = 0;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        dropped += lane->drop[cause];
    assert_int_equal(producer.attempts, rat_lane_stored(&producer) + dropped);
}

/* ---------------------------------------------------------------- a thread that is stopped at a point */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    const char *point; /* where it must stop, once */
    bool stopped, resumed;
} worker = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void stop_here(const char *point)
{
    if (!pthread_equal(pthread_self(), worker.thread))
        return;
    pthread_mutex_lock(&worker.lock);
    if (worker.point != NULL && strcmp(point, worker.point) == 0) {
        worker.point = NULL;
        worker.stopped = true;
        pthread_cond_broadcast(&worker.changed);
        while (!worker.resumed)
            pthread_cond_wait(&worker.changed, &worker.lock);
    }
    pthread_mutex_unlock(&worker.lock);
}

/* Run `body` on another thread until it comes to `point`. */
static void run_until(const char *point, void *(*body)(void *))
{
    pthread_mutex_lock(&worker.lock);
    worker.point = point;
    worker.stopped = worker.resumed = false;
    rat_test_point = stop_here;
    assert_int_equal(pthread_create(&worker.thread, NULL, body, NULL), 0);
    while (!worker.stopped)
        pthread_cond_wait(&worker.changed, &worker.lock);
    pthread_mutex_unlock(&worker.lock);
}

static void run_to_the_end(void)
{
    pthread_mutex_lock(&worker.lock);
    worker.resumed = true;
    pthread_cond_broadcast(&worker.changed);
    pthread_mutex_unlock(&worker.lock);
    pthread_join(worker.thread, NULL);
    rat_test_point = NULL;
}

static bool worker_stored;
static enum rat_append worker_appended;

static void *put_7(void *unused)
{
    worker_stored = put(7, START);
    return unused;
}

static void *append_7(void *unused)
{
    worker_appended = append(7, START);
    return unused;
}

static void *record_7(void *unused)
{
    worker_stored = record(7, START);
    return unused;
}

static void *begin_a_flip(void *unused)
{
    assert_true(flip_begin());
    return unused;
}

/* ---------------------------------------------------------------- one side at a time */

static void the_first_put_turns_and_opens_the_first_interval(void **state)
{
    (void)state;
    assert_false(put(1, START));
    assert_int_equal(turn(START), RAT_TURN_OPENED);
    assert_true(put(1, START));
    flip();
    assert_drained(1, 1);
    assert_int_equal(drain.sequence, 1);
}

static void events_come_out_in_order_with_their_times(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 5; i++)
        assert_true(record(i, START + 10 * i));
    flip();
    assert_drained(0, 5);
    uint64_t time = drain.head->base_ticks;
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(time += rat_event_delta(drain.words[i]), START + 10 * i);
    assert_balanced();
}

static void intervals_alternate_between_the_slots(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(record(i, START));
        flip();
        assert_drained(i, 1);
        assert_int_equal(drain.sequence, i + 1);
        assert_ptr_equal(drain.words, slots + i % 2 * SLOT_WORDS);
        append_chunk();
        assert_int_equal(lane->flushed_seq, i + 1);
    }
    assert_balanced();
}

static void a_flip_with_nothing_recorded_does_not_begin(void **state)
{
    (void)state;
    assert_false(flip_begin());
    assert_int_equal(turn(START), RAT_TURN_OPENED);
    assert_false(flip_begin());
    assert_true(put(1, START));
    flip();
    append_chunk();
    assert_false(flip_begin());
}

static void a_lane_idle_for_longer_than_a_sequence_wraps_records_as_before(void **state)
{
    (void)state;
    assert_true(record(1, START));
    flip();
    append_chunk();
    for (int period = 0; period < 70000; period++)
        assert_false(flip_begin());
    assert_true(record(2, START));
    flip();
    assert_drained(2, 1);
    assert_int_equal(drain.sequence, 2);
}

static void sequences_wrap_in_the_word_and_not_in_the_chunk(void **state)
{
    (void)state;
    for (uint32_t i = 1; i <= 65540; i++) {
        assert_true(record(i, START));
        flip();
        assert_int_equal(drain.events, 1);
        assert_int_equal(drain.sequence, i);
        append_chunk();
    }
}

static void a_rich_event_carries_its_payload(void **state)
{
    (void)state;
    uint64_t payload[3] = {11, UINT64_MAX, 0};
    assert_int_equal(turn(START), RAT_TURN_OPENED);
    assert_int_equal(rat_lane_append(&producer, rat_event_word(RAT_EVENT_NOTE, 0), payload, 3, START),
                     RAT_APPEND_STORED);
    flip();
    assert_int_equal(drain.events, 1);
    assert_int_equal(drain.count, 4);
    assert_int_equal(rat_event_kind(drain.words[0]), RAT_EVENT_NOTE);
    assert_int_equal(rat_event_id(drain.words[0]), 3);
    assert_memory_equal(drain.words + 1, payload, sizeof payload);
}

static void a_slot_is_used_to_its_last_word(void **state)
{
    (void)state;
    assert_int_equal(record_until_full(0), SLOT_WORDS);
    flip();
    assert_drained(0, SLOT_WORDS);
    assert_balanced();
}

static void a_payload_larger_than_the_room_stores_nothing(void **state)
{
    (void)state;
    uint64_t payload[SLOT_WORDS] = {0};
    assert_int_equal(turn(START), RAT_TURN_OPENED);
    assert_int_equal(rat_lane_append(&producer, call(0), payload, SLOT_WORDS, START), RAT_APPEND_FULL);
    assert_int_equal(rat_lane_append(&producer, call(0), payload, RAT_EVENT_ID_MAX + 1, START), RAT_APPEND_FULL);
    assert_int_equal(rat_lane_append(&producer, call(0), payload, UINT32_MAX, START), RAT_APPEND_FULL);
    assert_int_equal(rat_lane_append(&producer, call(0), payload, SLOT_WORDS - 1, START), RAT_APPEND_STORED);
}

/* ---------------------------------------------------------------- time */

static void a_large_gap_becomes_a_prefix_of_the_event(void **state)
{
    (void)state;
    uint64_t now = START, large = RAT_EVENT_DELTA_MAX + 1;
    assert_true(record(1, now));
    assert_true(put(2, now += RAT_EVENT_DELTA_MAX)); /* the largest that fits */
    assert_int_equal(append(3, now += RAT_EVENT_DELTA_MAX), RAT_APPEND_STORED);
    assert_false(put(4, now += large));
    assert_true(record(4, now));
    flip();
    assert_int_equal(drain.events, 4);
    assert_int_equal(drain.count, 6);
    assert_int_equal(rat_event_delta(drain.words[1]), RAT_EVENT_DELTA_MAX);
    assert_int_equal(rat_event_delta(drain.words[2]), RAT_EVENT_DELTA_MAX);
    assert_int_equal(drain.words[3], rat_event_word(RAT_EVENT_GAP, 1));
    assert_int_equal(drain.words[4], large);
    assert_int_equal(drain.words[5], call(4));
}

static void a_gap_prefix_without_room_for_its_event_is_not_stored(void **state)
{
    (void)state;
    assert_int_equal(turn(START), RAT_TURN_OPENED);
    for (uint32_t i = 0; i < SLOT_WORDS - 2; i++)
        assert_true(put(i, START));
    assert_int_equal(append(99, START + 2 * RAT_EVENT_DELTA_MAX), RAT_APPEND_FULL);
    flip();
    assert_drained(0, SLOT_WORDS - 2);
}

static void time_that_runs_backwards_stands_still(void **state)
{
    (void)state;
    assert_true(record(1, START + 100));
    assert_false(put(2, START + 50));
    assert_true(record(2, START + 50));
    assert_true(record(3, START + 101));
    flip();
    assert_drained(1, 3);
    assert_int_equal(rat_event_delta(drain.words[1]), 0);
    assert_int_equal(rat_event_delta(drain.words[2]), 1);
    append_chunk();
    assert_true(record(4, START));
    flip();
    assert_int_equal(drain.head->base_ticks, START + 101);
    assert_int_equal(rat_event_delta(drain.words[0]), 0);
}

/* ---------------------------------------------------------------- drops and totals */

static void after_a_drop_a_slot_takes_nothing_more(void **state)
{
    (void)state;
    uint64_t payload[4] = {0};
    assert_int_equal(turn(START), RAT_TURN_OPENED);
    for (uint32_t i = 0; i < SLOT_WORDS - 2; i++)
        assert_true(put(i, START));
    assert_int_equal(rat_lane_append(&producer, call(0), payload, 4, START), RAT_APPEND_FULL);
    rat_lane_drop(&producer, RAT_DROP_SLOT_FULL, START + 3);
    assert_false(put(90, START));
    assert_int_equal(turn(START), RAT_TURN_SAME);
    assert_int_equal(append(90, START), RAT_APPEND_FULL);
    rat_lane_drop(&producer, RAT_DROP_SLOT_FULL, START + 4);
    flip();
    assert_drained(0, SLOT_WORDS - 2);
    assert_int_equal(drain.closed_drop[RAT_DROP_SLOT_FULL], 2);
    assert_int_equal(drain.drop_first_ticks, START + 3);
    assert_int_equal(drain.drop_last_ticks, START + 4);
    assert_true(record(91, START + 5)); /* the next interval takes events again */
    assert_balanced();
}

static void an_interval_dropped_from_before_it_held_anything_opens_anew(void **state)
{
    (void)state;
    assert_int_equal(turn(START), RAT_TURN_OPENED);
    rat_lane_drop(&producer, RAT_DROP_OUT_OF_MEMORY, START + 1);
    assert_false(put(1, START + 2));
    assert_false(flip_begin()); /* it is empty: no flip would ever open it */
    assert_int_equal(turn(START + 2), RAT_TURN_OPENED);
    assert_true(put(1, START + 2));
    flip();
    assert_drained(1, 1);
    assert_int_equal(drain.sequence, 1);
    assert_int_equal(drain.head->base_ticks, START + 2);
    assert_int_equal(drain.head->opened_drop[RAT_DROP_OUT_OF_MEMORY], 1);
    assert_balanced();
}

static void the_first_interval_opens_with_nothing_stored(void **state)
{
    (void)state;
    rat_lane_drop(&producer, RAT_DROP_OUT_OF_MEMORY, START);
    assert_true(record(1, START + 1));
    flip();
    assert_int_equal(drain.head->opened_stored, 0);
    assert_int_equal(sum(drain.head->opened_drop), 1);
    assert_int_equal(drain.head->base_ticks, START + 1);
}

static void totals_of_neighbouring_intervals_meet(void **state)
{
    (void)state;
    uint64_t stored = 0, dropped = 0;
    for (uint32_t interval = 0; interval < 8; interval++) {
        bool fill = interval % 3 == 1;
        if (fill)
            record_until_full(0);
        else
            assert_true(record(1, START));
        flip();
        assert_int_equal(drain.head->opened_stored, stored);
        assert_int_equal(sum(drain.head->opened_drop), dropped);
        stored += drain.events;
        dropped = sum(drain.closed_drop);
        assert_int_equal(rat_lane_stored(&producer), stored);
        append_chunk();
    }
    assert_int_equal(dropped, 3);
    assert_balanced();
}

static void a_slot_that_is_not_read_makes_the_next_one_drop(void **state)
{
    (void)state;
    assert_int_equal(record_until_full(0), SLOT_WORDS);
    flip(); /* the append does not return */
    assert_int_equal(record_until_full(100), SLOT_WORDS);
    assert_false(flip_begin());
    assert_false(record(200, START));
    assert_drained(0, SLOT_WORDS); /* still there to be tried again */
    append_chunk();
    flip();
    assert_drained(100, SLOT_WORDS);
    assert_int_equal(drain.closed_drop[RAT_DROP_SLOT_FULL], 3);
    assert_balanced();
}

static void a_chunk_given_up_is_marked_so(void **state)
{
    (void)state;
    assert_true(record(1, START));
    flip();
    rat_lane_flip_done(&consumer, false);
    assert_int_equal(lane->abandoned_seq, 1);
    assert_int_equal(lane->flushed_seq, 0);
    assert_true(record(2, START));
    flip();
    assert_drained(2, 1);
    assert_int_equal(drain.head->opened_stored, 1);
}

static void a_producer_without_a_lane_stores_and_counts_nothing(void **state)
{
    (void)state;
    struct rat_lane_producer detached;
    enum rat_drop_cause cause;
    rat_lane_detach(&detached);
    assert_false(rat_lane_put(&detached, call(1), START, false));
    assert_int_equal(rat_lane_turn(&detached, START, &cause), RAT_TURN_NONE);
    assert_int_equal(cause, RAT_DROP_NO_LANE);
    assert_int_equal(rat_lane_append(&detached, call(1), NULL, 0, START), RAT_APPEND_FULL);
    rat_lane_drop(&detached, cause, START);
}

/* ---------------------------------------------------------------- both sides at once */

/* The producer has announced itself and not looked yet. */
static void a_hold_between_announce_and_look_is_seen(void **state)
{
    (void)state;
    assert_true(record(1, START));
    run_until("lane.announced", put_7);
    assert_true(flip_begin());
    assert_int_equal(flip_wait(), RAT_FLIP_PENDING); /* it may be inside, for all the serializer knows */
    run_to_the_end();
    assert_false(worker_stored);
    assert_int_equal(flip_wait(), RAT_FLIP_DRAIN);
    assert_drained(1, 1);
    assert_int_equal(turn(START), RAT_TURN_OPENED);
    assert_true(put(7, START));
    append_chunk();
    flip();
    assert_drained(7, 1);
}

static void a_hold_before_an_append_sends_it_to_the_other_slot(void **state)
{
    (void)state;
    assert_true(record(1, START));
    run_until("lane.announced", append_7);
    assert_true(flip_begin());
    run_to_the_end();
    assert_int_equal(worker_appended, RAT_APPEND_TURN);
    assert_int_equal(flip_wait(), RAT_FLIP_DRAIN);
    assert_drained(1, 1);
    assert_int_equal(rat_lane_stored(&producer), 1);
}

static void an_event_begun_before_the_hold_is_in_the_chunk(void **state)
{
    (void)state;
    assert_true(record(1, START));
    run_until("lane.entered", put_7);
    assert_true(flip_begin());
    assert_int_equal(flip_wait(), RAT_FLIP_PENDING);
    run_to_the_end();
    assert_true(worker_stored);
    assert_int_equal(flip_wait(), RAT_FLIP_DRAIN);
    assert_int_equal(drain.events, 2);
    assert_int_equal(rat_event_id(drain.words[1]), 7);
    assert_balanced();
}

static void a_wait_given_up_is_resumed_and_nothing_else(void **state)
{
    (void)state;
    assert_true(record(1, START));
    run_until("lane.entered", put_7);
    assert_true(flip_begin());
    for (int period = 0; period < 5; period++) {
        uint64_t held = lane->slot[0].g, free_one = lane->slot[1].g, given_out = lane->slot[1].opened.ticks;
        assert_int_equal(flip_wait(), RAT_FLIP_PENDING);
        assert_true(flip_begin());
        assert_int_equal(lane->slot[0].g, held);
        assert_int_equal(lane->slot[1].g, free_one);
        assert_int_equal(lane->slot[1].opened.ticks, given_out);
    }
    run_to_the_end();
    assert_true(record(8, START)); /* goes to the other slot, while the wait is still pending */
    assert_int_equal(flip_wait(), RAT_FLIP_DRAIN);
    assert_int_equal(drain.events, 2);
    append_chunk();
    flip();
    assert_drained(8, 1);
    assert_balanced();
}

/* A slot that was found held is announced in for a moment, and must stay as it is. */
static void a_transient_announce_leaves_a_held_slot_alone(void **state)
{
    (void)state;
    assert_true(record(1, START));
    assert_true(flip_begin());
    assert_int_equal(flip_wait(), RAT_FLIP_DRAIN);
    run_until("lane.announced", record_7);
    assert_true(lane->slot[0].w & RAT_W_BUSY);
    assert_drained(1, 1);
    run_to_the_end();
    assert_true(worker_stored);
    assert_false(lane->slot[0].w & RAT_W_BUSY);
    assert_drained(1, 1);
    append_chunk();
    flip();
    assert_drained(7, 1);
}

/* Between the two stores of a flip both slots are free. */
static void with_both_slots_free_the_producer_stays_where_it_is(void **state)
{
    (void)state;
    assert_true(record(1, START));
    run_until("flip.between", begin_a_flip);
    assert_false(lane->slot[0].g & RAT_G_HELD);
    assert_false(lane->slot[1].g & RAT_G_HELD);
    assert_true(record(2, START));
    assert_int_equal(turn(START), RAT_TURN_SAME);
    run_to_the_end();
    assert_true(record(3, START));
    assert_int_equal(flip_wait(), RAT_FLIP_DRAIN);
    assert_drained(1, 2);
    append_chunk();
    flip();
    assert_drained(3, 1);
}

static void a_slot_is_not_given_out_before_its_append_returned(void **state)
{
    (void)state;
    assert_true(record(1, START));
    flip();
    assert_true(record(2, START));
    assert_false(flip_begin());
    assert_true(lane->slot[0].g & RAT_G_HELD);
    assert_drained(1, 1);
    append_chunk();
    assert_true(lane->slot[0].g & RAT_G_HELD); /* only the next flip gives it out */
    flip();
    assert_false(lane->slot[0].g & RAT_G_HELD);
    assert_drained(2, 1);
}

/* ---------------------------------------------------------------- what is broken */

static void assert_disabled(enum rat_lost_cause cause)
{
    enum rat_drop_cause dropped;
    assert_int_equal(lane->state, RAT_LANE_DISABLED);
    assert_int_equal(lane->disabled_cause, cause);
    assert_false(flip_begin());
    assert_int_equal(rat_lane_turn(&producer, START, &dropped), RAT_TURN_NONE);
    assert_int_equal(dropped, RAT_DROP_LANE_DISABLED);
    assert_false(put(1, START));
    rat_lane_drop(&producer, dropped, START);
    assert_int_equal(lane->drop[RAT_DROP_LANE_DISABLED], 1);
}

static void a_foreign_sequence_in_w_disables_the_lane(void **state)
{
    (void)state;
    assert_true(record(1, START));
    assert_true(flip_begin());
    lane->slot[0].w += UINT64_C(5) << RAT_W_SEQ_SHIFT;
    assert_int_equal(flip_wait(), RAT_FLIP_BROKEN);
    assert_disabled(RAT_LOST_INVARIANT);
}

static void more_words_than_the_slot_has_disable_the_lane(void **state)
{
    (void)state;
    assert_true(record(1, START));
    assert_true(flip_begin());
    lane->slot[0].w += SLOT_WORDS * RAT_W_WORD;
    assert_int_equal(flip_wait(), RAT_FLIP_BROKEN);
    assert_disabled(RAT_LOST_INVARIANT);
}

static void more_events_than_words_disable_the_lane(void **state)
{
    (void)state;
    assert_true(record(1, START));
    assert_true(flip_begin());
    lane->slot[0].w += RAT_W_EVENT;
    assert_int_equal(flip_wait(), RAT_FLIP_BROKEN);
    assert_disabled(RAT_LOST_INVARIANT);
}

static void a_foreign_sequence_in_g_disables_the_lane_before_the_slot_is_touched(void **state)
{
    (void)state;
    struct rat_slot_head before = lane->slot[0];
    enum rat_drop_cause cause;
    lane->slot[0].g = rat_g(9, false);
    assert_int_equal(rat_lane_turn(&producer, START, &cause), RAT_TURN_NONE);
    assert_int_equal(cause, RAT_DROP_LANE_DISABLED);
    assert_int_equal(lane->slot[0].w, before.w);
    assert_int_equal(lane->slot[0].opened_stored, before.opened_stored);
    assert_disabled(RAT_LOST_INVARIANT);
}

static void no_free_slot_is_contended(void **state)
{
    (void)state;
    enum rat_drop_cause cause;
    assert_true(record(1, START));
    assert_true(flip_begin());
    lane->slot[1].g |= RAT_G_HELD; /* which no serializer does */
    assert_false(put(2, START));
    assert_int_equal(rat_lane_turn(&producer, START, &cause), RAT_TURN_NONE);
    assert_int_equal(cause, RAT_DROP_CONTENDED);
    rat_lane_drop(&producer, cause, START);
    assert_false(put(2, START));
    assert_int_equal(rat_lane_stored(&producer), 1);
    assert_balanced();
}

/* What the serializer does when membarrier is refused in mid-run. */
static void a_fence_that_fails_later_disables_the_lane_and_nothing_is_drained(void **state)
{
    (void)state;
    if (fence != RAT_FENCE_MEMBARRIER)
        skip();
    assert_true(record(1, START));
    run_until("lane.entered", put_7);
    assert_true(flip_begin());
    rat_fence_test_errno = EPERM;
    assert_int_equal(rat_fence_all(fence), RAT_ACCESS);
    rat_lane_disable(lane, RAT_LOST_FENCE_FAILED);
    run_to_the_end();
    rat_fence_test_errno = 0;
    assert_int_equal(flip_wait(), RAT_FLIP_BROKEN);
    assert_disabled(RAT_LOST_FENCE_FAILED);
    assert_int_equal(rat_lane_stored(&producer), 2); /* lost, and known to be: stored - drained */
    assert_int_equal(lane->flushed_seq, 0);
    assert_balanced();
}

static void a_lane_disabled_after_a_drain_lets_the_chunk_be_settled(void **state)
{
    (void)state;
    assert_true(record(1, START));
    flip();
    rat_lane_disable(lane, RAT_LOST_FENCE_FAILED);
    append_chunk();
    assert_int_equal(lane->flushed_seq, 1);
    assert_false(flip_begin());
}

#define IN_BOTH(test)                                                                              \
    {#test ", membarrier", test, open_plain, close_lane, NULL},                                    \
    {                                                                                              \
        #test ", seq_cst", test, open_strong, close_lane, NULL                                     \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(the_first_put_turns_and_opens_the_first_interval),
        IN_BOTH(events_come_out_in_order_with_their_times),
        IN_BOTH(intervals_alternate_between_the_slots),
        IN_BOTH(a_flip_with_nothing_recorded_does_not_begin),
        IN_BOTH(a_lane_idle_for_longer_than_a_sequence_wraps_records_as_before),
        IN_BOTH(sequences_wrap_in_the_word_and_not_in_the_chunk),
        IN_BOTH(a_rich_event_carries_its_payload),
        IN_BOTH(a_slot_is_used_to_its_last_word),
        IN_BOTH(a_payload_larger_than_the_room_stores_nothing),
        IN_BOTH(a_large_gap_becomes_a_prefix_of_the_event),
        IN_BOTH(a_gap_prefix_without_room_for_its_event_is_not_stored),
        IN_BOTH(time_that_runs_backwards_stands_still),
        IN_BOTH(after_a_drop_a_slot_takes_nothing_more),
        IN_BOTH(an_interval_dropped_from_before_it_held_anything_opens_anew),
        IN_BOTH(the_first_interval_opens_with_nothing_stored),
        IN_BOTH(totals_of_neighbouring_intervals_meet),
        IN_BOTH(a_slot_that_is_not_read_makes_the_next_one_drop),
        IN_BOTH(a_chunk_given_up_is_marked_so),
        IN_BOTH(a_producer_without_a_lane_stores_and_counts_nothing),
        IN_BOTH(a_hold_between_announce_and_look_is_seen),
        IN_BOTH(a_hold_before_an_append_sends_it_to_the_other_slot),
        IN_BOTH(an_event_begun_before_the_hold_is_in_the_chunk),
        IN_BOTH(a_wait_given_up_is_resumed_and_nothing_else),
        IN_BOTH(a_transient_announce_leaves_a_held_slot_alone),
        IN_BOTH(with_both_slots_free_the_producer_stays_where_it_is),
        IN_BOTH(a_slot_is_not_given_out_before_its_append_returned),
        IN_BOTH(a_foreign_sequence_in_w_disables_the_lane),
        IN_BOTH(more_words_than_the_slot_has_disable_the_lane),
        IN_BOTH(more_events_than_words_disable_the_lane),
        IN_BOTH(a_foreign_sequence_in_g_disables_the_lane_before_the_slot_is_touched),
        IN_BOTH(no_free_slot_is_contended),
        cmocka_unit_test_setup_teardown(a_fence_that_fails_later_disables_the_lane_and_nothing_is_drained, open_plain,
                                        close_lane),
        IN_BOTH(a_lane_disabled_after_a_drain_lets_the_chunk_be_settled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
