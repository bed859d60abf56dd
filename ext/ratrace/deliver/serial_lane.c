#include "deliver/serial_lane.h"

#include <string.h>

#include "base/testpoint.h"
#include "deliver/serializer.h"

static void add_label(struct rat_serial_lane *lane, enum rat_lost_cause cause, uint64_t first, uint64_t last,
                      uint64_t count)
{
    struct rat_lost_label *newest = lane->lost_count > 0 ? &lane->lost[lane->lost_count - 1] : NULL;
    if (newest != NULL && (lane->lost_count == RAT_SERIAL_LABELS ||
                           (newest->cause == (uint32_t)cause && newest->last_seq + 1 == first))) {
        newest->last_seq = last;
        newest->count += count;
        return;
    }
    lane->lost[lane->lost_count++] =
        (struct rat_lost_label){.cause = cause, .first_seq = first, .last_seq = last, .count = count};
}

/* The labels of a chunk: losses not yet told, and when the producer dropped. */
static uint32_t collect_labels(const struct rat_serial_lane *lane, const struct rat_totals *closed, uint64_t from,
                               uint64_t to, struct rat_lost_label out[RAT_SERIAL_LABELS + RAT_DROP_CAUSES])
{
    uint32_t count = lane->lost_count;
    memcpy(out, lane->lost, count * sizeof *out);
    for (uint32_t cause = 0; cause < RAT_DROP_CAUSES; cause++) {
        uint64_t dropped = closed->drop[cause] - lane->totals.drop[cause];
        if (dropped != 0)
            out[count++] = (struct rat_lost_label){
                .cause = cause, .count = dropped, .from_ticks = from < to ? from : to, .to_ticks = to};
    }
    return count;
}

static void settle(struct rat_serializer *s, struct rat_serial_lane *lane, const struct rat_totals *closed,
                   uint64_t sequence)
{
    lane->totals = *closed;
    pthread_mutex_lock(&s->lock);
    lane->settled_stored = closed->stored;
    lane->settled_seq = sequence;
    pthread_mutex_unlock(&s->lock);
}

/* Of a chunk that is about to be settled, for a recovery: whatever file told it may be gone by then. */
static void leave_totals(struct rat_lane_head *head, const struct rat_totals *closed, uint64_t sequence)
{
    atomic_store_explicit(&head->settled_seq, 0, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* a killed thread's stores end somewhere in this order */
    memcpy(head->settled_drop, closed->drop, sizeof head->settled_drop);
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&head->settled_seq, sequence, memory_order_relaxed);
}

static void give_up_chunk(struct rat_serializer *s, struct rat_serial_lane *lane, const struct rat_totals *closed,
                          enum rat_status why)
{
    uint64_t sequence = lane->drain.sequence;
    enum rat_lost_cause cause = why == RAT_NO_MEMORY ? RAT_LOST_ENCODER_MEMORY : RAT_LOST_INVARIANT;
    if (cause == RAT_LOST_INVARIANT)
        rat_lane_disable(lane->consumer.lane, cause);
    add_label(lane, cause, sequence, sequence, lane->drain.events);
    s->counts.lost_events += lane->drain.events;
    rat_serializer_debug(s, "%u events given up: %s", lane->drain.events, rat_status_text(why));
    leave_totals(lane->consumer.lane, closed, sequence);
    rat_lane_flip_done(&lane->consumer, false);
    settle(s, lane, closed, sequence);
}

static enum rat_status encode_drain(struct rat_serializer *s, struct rat_serial_lane *lane, uint32_t index,
                                    const struct rat_totals *closed)
{
    const struct rat_drain *drain = &lane->drain;
    struct rat_lost_label labels[RAT_SERIAL_LABELS + RAT_DROP_CAUSES];
    struct rat_chunk_info info = {
        .lane = index + 1,
        .sequence = drain->sequence,
        .reason = lane->reason,
        .opened = lane->totals,
        .closed = *closed,
        .start = drain->head->opened,
        .end = lane->end,
        .lost = labels,
        .lost_count = collect_labels(lane, closed, drain->drop_first_ticks, drain->drop_last_ticks, labels),
    };
    if (!rat_anchor_agrees(&info.start, &info.end, s->outlet.head->ticks_per_s))
        info.reason = RAT_REASON_CLOCK_BREAK;
    if (drain->head->opened_stored != lane->totals.stored)
        return RAT_BROKEN;
    struct rat_dict_view dict;
    enum rat_status status = rat_dict_view(s->mapping, s->mapped, s->outlet.head->tables_at, &dict);
    if (status != RAT_OK)
        return RAT_BROKEN;
    return rat_outlet_encode(&s->outlet, &info, drain->words, drain->count, drain->events, drain->head->base_ticks,
                             &dict);
}

enum rat_status rat_serial_lane_write(struct rat_serializer *s, struct rat_serial_lane *lane, uint32_t index)
{
    struct rat_totals closed = {.stored = lane->totals.stored + lane->drain.events};
    memcpy(closed.drop, lane->drain.closed_drop, sizeof closed.drop);
    enum rat_status status = rat_outlet_ready(&s->outlet);
    if (status != RAT_OK)
        return status;
    if (!s->outlet.kept) {
        status = encode_drain(s, lane, index, &closed);
        if (status != RAT_OK) {
            give_up_chunk(s, lane, &closed, status);
            return RAT_OK;
        }
        RAT_TEST_POINT("serializer.encoded");
    }
    s->first_lane = index;
    status = rat_outlet_append(&s->outlet);
    if (status != RAT_OK)
        return status;
    RAT_TEST_POINT("serializer.appended");
    s->counts.written_events += lane->drain.events;
    s->counts.raw_bytes += lane->drain.count * sizeof(uint64_t);
    lane->lost_count = 0;
    leave_totals(lane->consumer.lane, &closed, lane->drain.sequence);
    rat_lane_flip_done(&lane->consumer, true);
    settle(s, lane, &closed, lane->drain.sequence);
    RAT_TEST_POINT("serializer.flushed");
    return RAT_OK;
}

/* ---------------------------------------------------------------- its end */

/* Stored events of a disabled lane that no chunk will carry; `newest`: the last sequence that holds some. */
static uint64_t undrained(const struct rat_serial_lane *lane, uint64_t settled, uint64_t *newest)
{
    uint64_t events = 0;
    *newest = settled;
    for (int slot = 0; slot < 2; slot++) {
        uint64_t w = atomic_load_explicit(&lane->consumer.lane->slot[slot].w, memory_order_acquire);
        uint16_t ahead = (uint16_t)(rat_w_seq(w) - (uint16_t)settled);
        if (ahead < 1 || ahead > 2 || rat_w_events(w) == 0 || rat_w_words(w) > lane->consumer.capacity)
            continue;
        events += rat_w_events(w);
        if (settled + ahead > *newest)
            *newest = settled + ahead;
    }
    return events;
}

enum rat_status rat_serial_lane_finish(struct rat_serializer *s, struct rat_serial_lane *lane, uint32_t index)
{
    struct rat_lane_head *head = lane->consumer.lane;
    uint64_t settled = atomic_load_explicit(&head->flushed_seq, memory_order_relaxed); /* we wrote both */
    uint64_t abandoned = atomic_load_explicit(&head->abandoned_seq, memory_order_relaxed), newest;
    if (abandoned > settled)
        settled = abandoned;
    uint64_t lost = undrained(lane, settled, &newest);
    struct rat_totals opened = lane->totals, closed;
    opened.stored += lost;
    closed = opened;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        closed.drop[cause] = atomic_load_explicit(&head->drop[cause], memory_order_relaxed);
    if (lost == 0 && lane->lost_count == 0 && memcmp(&opened, &closed, sizeof opened) == 0)
        return RAT_OK;

    enum rat_status status = rat_outlet_ready(&s->outlet);
    if (status != RAT_OK)
        return status;
    uint32_t told = lane->lost_count;
    if (lost > 0)
        add_label(lane, atomic_load_explicit(&head->disabled_cause, memory_order_relaxed), settled + 1, newest, lost);
    struct rat_lost_label labels[RAT_SERIAL_LABELS + RAT_DROP_CAUSES];
    struct rat_anchor now = rat_anchor_take((enum rat_clock_kind)s->outlet.head->clock);
    struct rat_chunk_info info = {
        .lane = index + 1,
        .sequence = newest + 1,
        .reason = RAT_REASON_STOP,
        .opened = opened,
        .closed = closed,
        .start = now,
        .end = now,
        .lost = labels,
        .lost_count = collect_labels(
            lane, &closed, atomic_load_explicit(&head->drop_first_ticks, memory_order_relaxed),
            atomic_load_explicit(&head->drop_last_ticks, memory_order_relaxed), labels),
    };
    struct rat_dict_view dict;
    status = rat_dict_view(s->mapping, s->mapped, s->outlet.head->tables_at, &dict);
    if (status == RAT_OK)
        status = rat_outlet_encode(&s->outlet, &info, NULL, 0, 0, now.ticks, &dict);
    if (status == RAT_OK)
        status = rat_outlet_append(&s->outlet);
    if (status != RAT_OK) {
        lane->lost_count = told;
        return status;
    }
    s->counts.lost_events += lost;
    lane->lost_count = 0;
    leave_totals(head, &closed, newest + 1);
    atomic_store_explicit(&head->flushed_seq, newest + 1, memory_order_release);
    settle(s, lane, &closed, newest + 1);
    return RAT_OK;
}
