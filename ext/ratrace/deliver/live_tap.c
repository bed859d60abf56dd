#include "deliver/live_tap.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "deliver/live_view.h"
#include "record/event.h"
#include "wire/encoder.h"

#define LOOK_BYTES_MAX ((size_t)1 << 30)
#define TRIES 3 /* at a slot that changes under our hands, before it is left to the next look */

struct tapped_lane {
    uint64_t sequence;      /* of the interval that was looked at last; 0 = none yet */
    uint32_t words, events; /* of it, taken */
    uint64_t ticks;         /* of its last event */
    uint32_t context;       /* whose that was; 0 = not told */
    uint64_t stored;        /* S up to there */
    uint64_t dropped_first; /* D when the tap was opened */
    bool any;
    /* of our chunks */
    uint64_t chunk;
    struct rat_totals totals;
};

/* What is new in a slot. */
struct piece {
    uint32_t lane, from;
    struct rat_live_interval interval;
};

struct rat_tap {
    struct rat_live_view view;
    struct rat_encoder *encoder;
    struct rat_buffer out;
    bool opened; /* our opening chunk was given */
    bool over;
    struct tapped_lane lanes[RAT_LANES];
    struct piece pieces[RAT_LANES * 2];
    uint32_t piece_count;
    uint64_t events, missed, dropped;
};

enum rat_status rat_tap_open(int dir_fd, const char *name, const char *out_dir, struct rat_tap **out)
{
    struct rat_tap *tap = calloc(1, sizeof *tap);
    if (tap == NULL)
        return RAT_NO_MEMORY;
    enum rat_status status = rat_live_view_open(dir_fd, name, out_dir, false, &tap->view);
    if (status != RAT_OK) {
        free(tap);
        return status;
    }
    rat_buffer_init(&tap->out, LOOK_BYTES_MAX);
    if (!rat_live_view_is_live(&tap->view) || rat_live_view_is_other_boot(&tap->view))
        status = RAT_END;
    else /* a chunk may have a switch before what a slot holds */
        status = rat_encoder_new((uint32_t)(tap->view.head->slot_bytes / sizeof(uint64_t)) + 1, 0, &tap->encoder);
    if (status != RAT_OK) {
        rat_tap_free(tap);
        return status;
    }
    rat_encoder_begin_segment(tap->encoder);
    *out = tap;
    return RAT_OK;
}

void rat_tap_free(struct rat_tap *tap)
{
    if (tap == NULL)
        return;
    rat_encoder_free(tap->encoder);
    rat_buffer_free(&tap->out);
    rat_live_view_close(&tap->view);
    free(tap);
}

const struct rat_live_head *rat_tap_head(const struct rat_tap *tap)
{
    return tap->view.head;
}

/* ---------------------------------------------------------------- taking */

/* Take what interval `sequence` of a slot holds beyond what was taken of it. RAT_BUSY: it is gone. */
static enum rat_status take(struct rat_tap *tap, uint32_t index, uint32_t slot, uint64_t sequence)
{
    const struct tapped_lane *lane = &tap->lanes[index];
    struct piece *piece = &tap->pieces[tap->piece_count];
    piece->lane = index;
    piece->from = sequence == lane->sequence ? lane->words : 0;
    enum rat_status status =
        rat_live_view_interval(&tap->view, index, slot, sequence, piece->from, &piece->interval);
    if (status == RAT_OK && piece->interval.words > piece->from)
        tap->piece_count++;
    return status;
}

/* Both slots of a lane, the older interval first. It is read after the newer one was seen to have begun, so it is whole:
 * the producer does not go back. */
static enum rat_status take_lane(struct rat_tap *tap, uint32_t index)
{
    const struct tapped_lane *lane = &tap->lanes[index];
    uint32_t before = tap->piece_count;
    enum rat_status status = RAT_BUSY;
    for (int try = 0; try < TRIES && status == RAT_BUSY; try++) {
        struct rat_live_interval seen[2];
        tap->piece_count = before;
        status = rat_live_view_peek(&tap->view, index, 0, &seen[0]);
        if (status == RAT_OK)
            status = rat_live_view_peek(&tap->view, index, 1, &seen[1]);
        uint32_t older = seen[0].sequence > seen[1].sequence;
        for (uint32_t i = 0; i < 2 && status == RAT_OK; i++) {
            uint32_t slot = older ^ i;
            if (seen[slot].sequence != 0 && seen[slot].sequence >= lane->sequence)
                status = take(tap, index, slot, seen[slot].sequence);
        }
    }
    if (status != RAT_BUSY)
        return status;
    tap->piece_count = before;
    return RAT_OK; /* it is flipped faster than we can look */
}

static uint64_t drops_of(const struct rat_tap *tap, uint32_t index, uint64_t out[RAT_DROP_CAUSES])
{
    const struct rat_lane_head *head = rat_live_view_lane(&tap->view, index);
    uint64_t sum = 0;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        sum += out[cause] = atomic_load_explicit(&head->drop[cause], memory_order_relaxed); /* in our copy */
    return sum;
}

/* ---------------------------------------------------------------- chunks */

/* Follow the words from `from` on: the time of the last event, and whose it is. False: these are no events. */
static bool follow(struct tapped_lane *lane, const uint64_t *words, uint32_t from, uint32_t count)
{
    bool over = false;
    for (uint32_t at = from; at < count && !over; at++) {
        enum rat_event_kind kind = rat_event_kind(words[at]);
        uint32_t id = rat_event_id(words[at]), left = count - at - 1;
        over = __builtin_add_overflow(lane->ticks, rat_event_delta(words[at]), &lane->ticks);
        if (kind == RAT_EVENT_SWITCH)
            lane->context = id;
        if (kind < RAT_EVENT_RICH)
            continue;
        uint32_t payload = kind == RAT_EVENT_GAP ? 1 : id;
        if (payload > left)
            return false;
        if (kind == RAT_EVENT_GAP)
            over |= __builtin_add_overflow(lane->ticks, words[at + 1], &lane->ticks);
        else if (kind == RAT_EVENT_SNAPSHOT && payload > 0)
            lane->context = (uint32_t)(words[at + 1] >> 32);
        at += payload;
    }
    return !over;
}

/* The anchor a slot was opened with, where it can be true. */
static struct rat_anchor opened_anchor(const struct rat_anchor *opened, const struct rat_anchor *now)
{
    bool holds = opened->ticks <= now->ticks && opened->monotonic_ns <= now->monotonic_ns && opened->realtime_ns != 0;
    return holds ? *opened : *now;
}

static struct rat_chunk_info new_chunk(const struct rat_tap *tap, const struct rat_anchor *now)
{
    return (struct rat_chunk_info){
        .session = tap->view.head,
        .segment = 1,
        .sequence = 1,
        .reason = RAT_REASON_OPENING,
        .start = *now,
        .end = *now,
        .with_session = true,
    };
}

/* Set the lane to the beginning of an interval: what was missed before it? */
static void begin_interval(struct rat_tap *tap, struct tapped_lane *lane, const struct rat_live_interval *interval,
                           uint64_t *missed)
{
    *missed = lane->any && interval->opened_stored > lane->stored ? interval->opened_stored - lane->stored : 0;
    tap->missed += *missed;
    lane->any = true;
    lane->sequence = interval->sequence;
    lane->words = lane->events = lane->context = 0;
    lane->ticks = interval->base_ticks;
    lane->stored = interval->opened_stored;
}

static enum rat_status encode(struct rat_tap *tap, const struct piece *piece, const struct rat_dict_view *dict,
                              const struct rat_anchor *now)
{
    struct tapped_lane *lane = &tap->lanes[piece->lane];
    const struct rat_live_interval *interval = &piece->interval;
    uint64_t missed = 0;
    if (piece->from == 0)
        begin_interval(tap, lane, interval, &missed);
    uint64_t *words = interval->at + piece->from, base = lane->ticks;
    uint32_t count = interval->words - piece->from, events = interval->events - lane->events, added = 0;
    if (interval->events < lane->events || lane->stored > UINT64_MAX - events)
        return RAT_CORRUPT;
    if (piece->from > 0 && lane->context != 0) { /* in the place of a word that was taken before */
        *--words = rat_event_word(RAT_EVENT_SWITCH, lane->context);
        count++;
        added = 1;
    }
    if (!follow(lane, interval->at, piece->from, interval->words))
        return RAT_CORRUPT;
    struct rat_chunk_info info = new_chunk(tap, now);
    info.with_session = false;
    info.lane = piece->lane + 1;
    info.reason = RAT_REASON_PERIOD;
    info.sequence = lane->chunk + 1 + (missed > 0);
    info.start = opened_anchor(&interval->opened, now);
    info.opened = lane->totals;
    info.opened.stored += missed;
    info.closed = info.opened;
    info.closed.stored += events + added;
    (void)drops_of(tap, piece->lane, info.closed.drop);
    if (lane->chunk == 0)
        memcpy(info.opened.drop, info.closed.drop, sizeof info.opened.drop);
    enum rat_status status =
        rat_encoder_lane_chunk(tap->encoder, &info, words, count, events + added, base, dict, &tap->out);
    if (status != RAT_OK)
        return status;
    rat_encoder_settle(tap->encoder, true);
    lane->words = interval->words;
    lane->events = interval->events;
    lane->stored += events;
    lane->chunk = info.sequence;
    lane->totals = info.closed;
    tap->events += events;
    return RAT_OK;
}

enum rat_status rat_tap_look(struct rat_tap *tap, const uint8_t **bytes, size_t *length, struct rat_anchor *now)
{
    bool over = !rat_live_view_is_live(&tap->view); /* before the look: it will have seen everything */
    *now = rat_anchor_take((enum rat_clock_kind)tap->view.head->clock);
    tap->out.length = 0;
    tap->piece_count = 0;
    enum rat_status status = RAT_OK;
    if (!tap->opened) {
        struct rat_chunk_info info = new_chunk(tap, now);
        status = rat_encoder_session_chunk(tap->encoder, &info, NULL, &tap->out);
        if (status == RAT_OK)
            rat_encoder_settle(tap->encoder, true);
    }
    if (status == RAT_OK)
        status = rat_live_view_refresh(&tap->view);
    tap->dropped = 0;
    for (uint32_t i = 0; i < RAT_LANES && status == RAT_OK; i++) {
        const struct rat_lane_head *head = rat_live_view_lane(&tap->view, i);
        uint64_t causes[RAT_DROP_CAUSES], dropped = drops_of(tap, i, causes);
        if (!tap->opened)
            tap->lanes[i].dropped_first = dropped;
        tap->dropped += dropped - tap->lanes[i].dropped_first;
        if (atomic_load_explicit(&head->state, memory_order_relaxed) == RAT_LANE_OPEN)
            status = take_lane(tap, i);
    }
    struct rat_dict_view dict;
    if (status == RAT_OK && tap->piece_count > 0)
        status = rat_live_view_dict(&tap->view, &dict); /* after the words that name what is in it */
    for (uint32_t i = 0; i < tap->piece_count && status == RAT_OK; i++)
        status = encode(tap, &tap->pieces[i], &dict, now);
    tap->opened = true;
    tap->over = over;
    *bytes = tap->out.bytes;
    *length = tap->out.length;
    return status;
}

struct rat_tap_counts rat_tap_counts(const struct rat_tap *tap)
{
    return (struct rat_tap_counts){
        .events = tap->events, .missed = tap->missed, .dropped = tap->dropped, .over = tap->over};
}
