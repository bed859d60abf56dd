/* Design notes.
 *
 * Actors.     A dead process: its live file shows, for each of its threads, a prefix of that thread's stores; nothing
 *             holds between threads. Its part file ends at a whole chunk, or torn. We, who may be killed at any step
 *             and started again, or be several: the lock on the live file lets one in.
 * Constraint. Every event whose cursor was stored is told exactly once, nothing else is told, and the rest is counted.
 *
 * What the live file says of a lane:
 *   W of each slot        sequence, events and words that exist, busy. An interval is unflushed if its sequence is one
 *                         or two beyond flushed_seq and abandoned_seq; then its slot is intact, because a slot is given
 *                         out again only after its chunk's append returned. G is not needed: it says who may write.
 *   flushed_seq           is stored after the append, so the chunk may be in the part file all the same: the file is
 *                         asked, too. It is stored before a segment can be published, so published ones are not asked.
 *   S at the opening      in the slot. D in the lane; at the opening, in the slot. The newest chunk takes D as it is.
 *   busy                  an attempt was under way: in_flight, 0 or 1.
 *
 * Steps, and a kill behind each:
 *   adopt (lock, cut)     nothing is lost by cutting: what is torn was never flushed
 *   append each chunk     the next run finds it in the part file
 *   closing chunk, crash  the next run finds it as the last one: only unlink and publish are left
 *   unlink the live file  the next run finds a part file without one, closed: only publish is left
 *   publish               done
 * Were the order of the last two turned round, a kill between would leave a live file whose chunks are in a published
 * segment, and the next run would tell them again.
 *
 * Totals of the chunk before the first recovered one: from the part file; else S from the slot and D from the lane, where
 *   settled_seq names that chunk. It may not: the serializer was killed between leaving the totals of a chunk that it
 *   gave up and settling it. Then D at the slot's opening, which may be off by the drops that fell between the two
 *   chunks. Sums over the session are right anyway.
 * A disabled lane is not believed beyond its count: a chunk without events tells the loss.
 * Another boot: pages may be of any age. Nothing is decoded; the stored totals are told as a lower bound.
 */
#include "deliver/salvage.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/testpoint.h"
#include "deliver/outlet.h"
#include "record/event.h"
#include "record/lane.h"
#include "wire/segment.h"

#define LABELS (RAT_DROP_CAUSES + 2)

/* What segment files already tell of a lane. */
struct told {
    bool known;
    uint64_t sequence; /* of the newest chunk */
    struct rat_totals closed;
    uint32_t in_flight;
};

struct salvage {
    struct rat_live_view *view;
    struct rat_live_head *head;
    struct rat_outlet outlet;
    struct rat_dict_view dict;
    struct told told[RAT_LANES];
    enum rat_reason last; /* of the part file's newest chunk; 0 = it has none */
    struct rat_anchor now;
    struct rat_salvage *out;
};

/* ---------------------------------------------------------------- what is told already */

static bool is_ours(const struct salvage *s, const struct rat_chunk_header *header)
{
    return header->session_hi == s->head->session_hi && header->session_lo == s->head->session_lo;
}

static void note_chunk(struct salvage *s, const struct rat_chunk_header *header)
{
    if (header->lane == 0) {
        if (header->sequence > atomic_load_explicit(&s->head->session_seq, memory_order_relaxed)) /* our own copy */
            atomic_store_explicit(&s->head->session_seq, header->sequence, memory_order_relaxed);
        return;
    }
    if (header->lane > RAT_LANES)
        return;
    struct told *told = &s->told[header->lane - 1];
    if (told->known && told->sequence >= header->sequence)
        return;
    *told = (struct told){
        .known = true,
        .sequence = header->sequence,
        .closed = header->closed,
        .in_flight = header->in_flight,
    };
}

/* Read a segment file of this session. RAT_CORRUPT: it is another session's. */
static enum rat_status read_segment(struct salvage *s, const char *path, enum rat_reason *last)
{
    struct rat_segment_reader *reader;
    enum rat_status status = rat_segment_open(path, &reader);
    if (status != RAT_OK)
        return status;
    struct rat_read read;
    *last = 0;
    do {
        rat_segment_next(reader, &read);
        if (read.kind != RAT_READ_CHUNK && read.kind != RAT_READ_UNREADABLE)
            continue;
        if (!is_ours(s, &read.header)) {
            status = RAT_CORRUPT;
            break;
        }
        note_chunk(s, &read.header);
        *last = (enum rat_reason)read.header.reason;
    } while (read.kind != RAT_READ_END);
    rat_segment_reader_free(reader);
    return status;
}

static void path_of(const struct salvage *s, uint32_t segment, const char *suffix, char *out, size_t length)
{
    char name[RAT_SEGMENT_NAME_MAX];
    rat_outlet_name(s->head, segment, name);
    snprintf(out, length, "%s/%s%s", s->head->out_dir, name, suffix);
}

/* ---------------------------------------------------------------- what is not */

/* An interval that may be unflushed. */
struct interval {
    uint64_t sequence;
    uint32_t slot, words, events;
};

struct evidence {
    const struct rat_lane_head *lane;
    uint64_t settled;
    struct interval intervals[2]; /* by sequence */
    uint32_t count;
    uint32_t in_flight;
    bool believed;
    enum rat_lost_cause cause; /* where not */
    uint64_t drop[RAT_DROP_CAUSES];
};

static void add_interval(struct evidence *evidence, const struct interval *interval)
{
    if (evidence->count == 1 && evidence->intervals[0].sequence > interval->sequence) {
        evidence->intervals[1] = evidence->intervals[0];
        evidence->intervals[0] = *interval;
    } else {
        evidence->intervals[evidence->count] = *interval;
    }
    evidence->count++;
}

static struct evidence gather(const struct salvage *s, uint32_t index)
{
    const struct rat_lane_head *lane = rat_live_view_lane(s->view, index);
    struct evidence evidence = {.lane = lane, .believed = true, .cause = RAT_LOST_INVARIANT};
    /* all relaxed: it is a copy of a dead process's memory */
    uint64_t abandoned = atomic_load_explicit(&lane->abandoned_seq, memory_order_relaxed);
    evidence.settled = atomic_load_explicit(&lane->flushed_seq, memory_order_relaxed);
    if (abandoned > evidence.settled)
        evidence.settled = abandoned;
    if (atomic_load_explicit(&lane->state, memory_order_relaxed) == RAT_LANE_DISABLED) {
        evidence.believed = false;
        evidence.cause = (enum rat_lost_cause)atomic_load_explicit(&lane->disabled_cause, memory_order_relaxed);
    }
    for (uint32_t slot = 0; slot < 2; slot++) {
        uint64_t w = atomic_load_explicit(&lane->slot[slot].w, memory_order_relaxed);
        uint16_t ahead = (uint16_t)(rat_w_seq(w) - (uint16_t)evidence.settled);
        evidence.in_flight |= (uint32_t)(w & RAT_W_BUSY);
        bool is_old = ahead == 0 || ahead == UINT16_MAX, is_new = ahead == 1 || ahead == 2;
        struct interval interval = {
            .sequence = evidence.settled + ahead,
            .slot = slot,
            .words = rat_w_words(w),
            .events = rat_w_events(w),
        };
        if (interval.events > interval.words || interval.words > s->head->slot_bytes / sizeof(uint64_t) ||
            (!is_old && !is_new) || evidence.settled > UINT64_MAX / 2)
            evidence.believed = false;
        else if (is_new && interval.words > 0)
            add_interval(&evidence, &interval);
    }
    if (evidence.count == 2 && evidence.intervals[0].sequence == evidence.intervals[1].sequence)
        evidence.believed = false;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        evidence.drop[cause] = atomic_load_explicit(&lane->drop[cause], memory_order_relaxed);
    return evidence;
}

/* ---------------------------------------------------------------- chunks */

static void raise_drops(uint64_t drop[RAT_DROP_CAUSES], const uint64_t to[RAT_DROP_CAUSES])
{
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        if (to[cause] > drop[cause])
            drop[cause] = to[cause];
}

/* The moment of tick `ticks`, by the anchors before and after it. */
static struct rat_anchor between(const struct rat_anchor *from, const struct rat_anchor *to, uint64_t ticks)
{
    if (ticks <= from->ticks || to->ticks <= from->ticks)
        return *from;
    if (ticks >= to->ticks)
        return *to;
    double part = (double)(ticks - from->ticks) / (double)(to->ticks - from->ticks);
    struct rat_anchor at = *from;
    at.ticks = ticks;
    at.monotonic_ns += (uint64_t)(part * (double)(to->monotonic_ns - from->monotonic_ns));
    at.realtime_ns += (uint64_t)(part * ((double)to->realtime_ns - (double)from->realtime_ns));
    at.width_ticks = from->width_ticks > to->width_ticks ? from->width_ticks : to->width_ticks;
    return at;
}

/* The last event's time, from the interval's base on. False: time overflows, these are no events. */
static bool last_ticks(const uint64_t *words, uint32_t count, uint64_t *ticks)
{
    bool over = false;
    for (uint32_t at = 0; at < count && !over; at++) {
        over = __builtin_add_overflow(*ticks, rat_event_delta(words[at]), ticks);
        if (rat_event_kind(words[at]) == RAT_EVENT_GAP && at + 1 < count)
            over |= __builtin_add_overflow(*ticks, words[++at], ticks);
        else if (rat_event_kind(words[at]) > RAT_EVENT_GAP)
            at += rat_event_id(words[at]) < count - at ? rat_event_id(words[at]) : count - at - 1;
    }
    return !over;
}

/* The anchor a slot was opened with, where it can be true: on this clock, before now. */
static struct rat_anchor opened_anchor(const struct salvage *s, const struct rat_slot_head *slot)
{
    struct rat_anchor opened = slot->opened;
    bool holds = opened.ticks <= s->now.ticks && opened.monotonic_ns <= s->now.monotonic_ns && opened.realtime_ns != 0;
    return holds ? opened : s->now;
}

static uint32_t label_drops(const struct evidence *evidence, const struct rat_chunk_info *info,
                            struct rat_lost_label *labels)
{
    uint32_t count = 0;
    uint64_t from = atomic_load_explicit(&evidence->lane->drop_first_ticks, memory_order_relaxed);
    uint64_t to = atomic_load_explicit(&evidence->lane->drop_last_ticks, memory_order_relaxed);
    for (uint32_t cause = 0; cause < RAT_DROP_CAUSES; cause++)
        if (info->closed.drop[cause] > info->opened.drop[cause])
            labels[count++] = (struct rat_lost_label){
                .cause = cause,
                .count = info->closed.drop[cause] - info->opened.drop[cause],
                .from_ticks = from < to ? from : to,
                .to_ticks = to,
            };
    return count;
}

/* Append what was encoded, and remember that it is told. */
static enum rat_status append(struct salvage *s, const struct rat_chunk_info *info, uint32_t events)
{
    enum rat_status status = rat_outlet_append(&s->outlet);
    if (status != RAT_OK)
        return status;
    s->told[info->lane - 1] = (struct told){
        .known = true, .sequence = info->sequence, .closed = info->closed, .in_flight = info->in_flight};
    s->out->chunks++;
    s->out->events += events;
    s->out->in_flight += info->in_flight;
    RAT_TEST_POINT("salvage.appended");
    return RAT_OK;
}

/* A chunk without events: totals, labels, in_flight. */
static enum rat_status tell_totals(struct salvage *s, struct rat_chunk_info *info)
{
    info->reason = RAT_REASON_RECOVERED;
    info->start = info->end = s->now;
    enum rat_status status = rat_outlet_ready(&s->outlet);
    if (status == RAT_OK)
        status = rat_outlet_encode(&s->outlet, info, NULL, 0, 0, s->now.ticks, &s->dict);
    return status == RAT_OK ? append(s, info, 0) : status;
}

/* One unflushed interval. RAT_CORRUPT: its words do not add up; nothing was written. */
static enum rat_status tell_interval(struct salvage *s, uint32_t index, const struct evidence *evidence,
                                     const struct interval *interval, bool is_last)
{
    const struct rat_slot_head *slot = &evidence->lane->slot[interval->slot];
    const struct told *told = &s->told[index];
    const uint64_t *words;
    uint64_t ticks = slot->base_ticks;
    enum rat_status status = rat_live_view_slot(s->view, index, interval->slot, interval->words, &words);
    if (status == RAT_OK && !last_ticks(words, interval->words, &ticks))
        status = RAT_CORRUPT;
    if (status != RAT_OK)
        return status;
    struct rat_lost_label labels[LABELS];
    struct rat_chunk_info info = {
        .lane = index + 1,
        .sequence = interval->sequence,
        .reason = RAT_REASON_RECOVERED,
        .opened = told->closed,
        .in_flight = is_last ? evidence->in_flight : 0,
        .lost = labels,
    };
    bool is_next = told->known && told->sequence + 1 == interval->sequence;
    if (!is_next && slot->opened_stored > info.opened.stored)
        info.opened.stored = slot->opened_stored;
    info.closed = info.opened;
    info.closed.stored += interval->events;
    raise_drops(info.closed.drop,
                is_last ? evidence->drop : evidence->lane->slot[interval->slot ^ 1].opened_drop);
    info.lost_count = label_drops(evidence, &info, labels);
    if (told->known && !is_next)
        labels[info.lost_count++] = (struct rat_lost_label){
            .cause = RAT_LOST_UNKNOWN,
            .first_seq = told->sequence + 1,
            .last_seq = interval->sequence - 1,
            .count = info.opened.stored - told->closed.stored,
        };
    info.start = opened_anchor(s, slot);
    info.end = between(&info.start, &s->now, ticks);
    status = rat_outlet_ready(&s->outlet);
    if (status == RAT_OK)
        status = rat_outlet_encode(&s->outlet, &info, words, interval->words, interval->events, slot->base_ticks,
                                   &s->dict);
    return status == RAT_OK ? append(s, &info, interval->events) : status;
}

/* Stored events that cannot be told, in a chunk behind the gap they leave. */
static enum rat_status tell_loss(struct salvage *s, uint32_t index, const struct evidence *evidence, uint64_t newest,
                                 uint64_t lost, enum rat_lost_cause cause)
{
    const struct told *told = &s->told[index];
    struct rat_lost_label labels[LABELS];
    struct rat_chunk_info info = {
        .lane = index + 1,
        .sequence = newest + 1,
        .opened = told->closed,
        .in_flight = told->in_flight ? 0 : evidence->in_flight,
        .lost = labels,
    };
    info.opened.stored += lost;
    info.closed = info.opened;
    raise_drops(info.closed.drop, evidence->drop);
    if (lost == 0 && info.in_flight == 0 && memcmp(&info.opened, &info.closed, sizeof info.opened) == 0)
        return RAT_OK; /* all is told */
    info.lost_count = label_drops(evidence, &info, labels);
    if (lost > 0)
        labels[info.lost_count++] = (struct rat_lost_label){
            .cause = cause, .first_seq = told->sequence + 1, .last_seq = newest, .count = lost};
    return tell_totals(s, &info);
}

/* Totals of the newest chunk written or given up, of a lane that the part file does not tell of: see the notes. */
static void assume_totals(struct told *told, const struct evidence *evidence)
{
    const struct rat_slot_head *from = NULL;
    uint64_t inside = 0;
    for (int slot = 0; slot < 2 && evidence->count == 0; slot++) {
        uint64_t w = atomic_load_explicit(&evidence->lane->slot[slot].w, memory_order_relaxed);
        if (evidence->settled == 0 || rat_w_seq(w) != (uint16_t)evidence->settled)
            continue;
        from = &evidence->lane->slot[slot]; /* settled, and not opened again */
        inside = rat_w_events(w);
    }
    if (evidence->count > 0)
        from = &evidence->lane->slot[evidence->intervals[0].slot];
    if (from == NULL)
        return;
    told->sequence = evidence->settled;
    told->closed.stored = from->opened_stored + inside;
    const struct rat_lane_head *lane = evidence->lane;
    bool exact = atomic_load_explicit(&lane->settled_seq, memory_order_relaxed) == evidence->settled;
    memcpy(told->closed.drop, exact ? lane->settled_drop : from->opened_drop, sizeof told->closed.drop);
    told->known = exact && atomic_load_explicit(&lane->flushed_seq, memory_order_relaxed) == evidence->settled;
}

static uint64_t base_sequence(const struct told *told, const struct evidence *evidence)
{
    return told->sequence > evidence->settled ? told->sequence : evidence->settled;
}

static enum rat_status salvage_lane(struct salvage *s, uint32_t index)
{
    struct evidence evidence = gather(s, index);
    struct told *told = &s->told[index];
    if (!told->known)
        assume_totals(told, &evidence);
    uint64_t newest = base_sequence(told, &evidence), lost = 0;
    enum rat_status status = RAT_OK;
    for (uint32_t i = 0; i < evidence.count; i++) {
        const struct interval *interval = &evidence.intervals[i];
        if (told->known && interval->sequence <= told->sequence)
            continue; /* in the part file: the kill came before flushed_seq, or it was an earlier recovery */
        if (evidence.believed && lost == 0)
            status = tell_interval(s, index, &evidence, interval, i + 1 == evidence.count);
        if (!evidence.believed || lost > 0 || status == RAT_CORRUPT) {
            lost += interval->events;
            status = RAT_OK;
        }
        if (status != RAT_OK)
            return status;
        newest = interval->sequence;
    }
    return tell_loss(s, index, &evidence, newest, lost, evidence.cause);
}

/* Another boot: only what the totals say, at least. */
static enum rat_status count_lane(struct salvage *s, uint32_t index)
{
    struct evidence evidence = gather(s, index);
    evidence.in_flight = 0;
    if (!s->told[index].known) {
        assume_totals(&s->told[index], &evidence);
        s->told[index].known = false;
    }
    uint64_t stored = 0, told = s->told[index].closed.stored;
    for (int slot = 0; slot < 2; slot++) {
        const struct rat_slot_head *head = &evidence.lane->slot[slot];
        uint64_t events = rat_w_events(atomic_load_explicit(&head->w, memory_order_relaxed));
        if (head->opened_stored < UINT64_MAX / 2 && head->opened_stored + events > stored)
            stored = head->opened_stored + events;
    }
    uint64_t lost = stored > told ? stored - told : 0;
    uint64_t newest = base_sequence(&s->told[index], &evidence) + (lost > 0);
    return tell_loss(s, index, &evidence, newest, lost, RAT_LOST_POWER);
}

/* ---------------------------------------------------------------- one session */

/* The segment before, closed and numbered on, but not yet published. */
static void publish_previous(struct salvage *s)
{
    char path[4096];
    struct stat file;
    path_of(s, atomic_load_explicit(&s->head->segment, memory_order_relaxed) - 1, RAT_SEGMENT_PART, path, sizeof path);
    if (stat(path, &file) == 0 && rat_salvage_part(path, s->out) != RAT_OK)
        return; /* it stays for the next run */
}

/* Take over the part file, if there is one, and learn what it tells. */
static enum rat_status adopt_part(struct salvage *s)
{
    uint32_t segment = atomic_load_explicit(&s->head->segment, memory_order_relaxed);
    char path[4096];
    path_of(s, segment, RAT_SEGMENT_PART, path, sizeof path);
    struct stat before = {0};
    (void)stat(path, &before);
    struct rat_segment_writer writer;
    enum rat_status status = rat_segment_adopt(&writer, path);
    if (status == RAT_NOT_FOUND) {
        /* not begun; or published after all, by a run that could not know of this live file */
        path_of(s, segment, "", path, sizeof path);
        if (read_segment(s, path, &s->last) == RAT_OK)
            atomic_store_explicit(&s->head->segment, segment + 1, memory_order_relaxed);
        s->last = 0;
        return RAT_OK;
    }
    if (status != RAT_OK)
        return status;
    RAT_TEST_POINT("salvage.adopted");
    if ((uint64_t)before.st_size > writer.length)
        s->out->cut_bytes += (uint64_t)before.st_size - writer.length;
    rat_outlet_resume(&s->outlet, &writer);
    return read_segment(s, path, &s->last);
}

static enum rat_status publish(struct salvage *s)
{
    enum rat_status status = rat_outlet_publish(&s->outlet);
    if (status == RAT_OK) {
        s->out->segments++;
        memcpy(s->out->path, s->outlet.published, sizeof s->out->path);
    }
    return status;
}

/* The part file was closed by its owner: publish it, and what is left goes into a segment of its own. */
static enum rat_status publish_closed(struct salvage *s)
{
    enum rat_status status = publish(s);
    uint32_t segment = atomic_load_explicit(&s->head->segment, memory_order_relaxed);
    atomic_store_explicit(&s->head->segment, segment + 1, memory_order_relaxed);
    return status;
}

static struct rat_outlet_marks mark_lanes(const struct salvage *s)
{
    struct rat_outlet_marks marks = {.count = 0};
    for (uint32_t i = 0; i < RAT_LANES; i++)
        if (s->told[i].known)
            marks.lane[marks.count++] = (struct rat_lane_mark){
                .lane = i + 1, .sequence = s->told[i].sequence, .closed = s->told[i].closed};
    return marks;
}

static enum rat_status salvage_lanes(struct salvage *s)
{
    bool other_boot = rat_live_view_is_other_boot(s->view);
    enum rat_status status = RAT_OK;
    if (!other_boot)
        status = rat_live_view_dict(s->view, &s->dict);
    for (uint32_t i = 0; i < RAT_LANES && status == RAT_OK; i++) {
        uint32_t state = atomic_load_explicit(&rat_live_view_lane(s->view, i)->state, memory_order_relaxed);
        if (state != RAT_LANE_CLOSED)
            status = other_boot ? count_lane(s, i) : salvage_lane(s, i);
    }
    if (status == RAT_OK && s->outlet.writer.fd >= 0)
        status = rat_outlet_ready(&s->outlet); /* a part file that had not even its opening chunk */
    struct rat_outlet_marks marks = mark_lanes(s);
    if (status == RAT_OK && s->outlet.writer.fd >= 0)
        status = rat_outlet_finish(&s->outlet, RAT_REASON_CRASH, other_boot ? NULL : &s->dict, &marks);
    return status;
}

enum rat_status rat_salvage_session(struct rat_live_view *view, const char *live_path, struct rat_salvage *out)
{
    struct salvage s = {.view = view, .head = view->head, .out = out};
    out->path[0] = '\0';
    s.now = rat_anchor_take((enum rat_clock_kind)s.head->clock);
    enum rat_status status = rat_outlet_init(&s.outlet, s.head);
    if (status == RAT_OK) {
        publish_previous(&s);
        status = adopt_part(&s);
    }
    if (status == RAT_OK && s.last == RAT_REASON_CLOSING)
        status = publish_closed(&s);
    if (status == RAT_OK && s.last != RAT_REASON_CRASH) /* else an earlier recovery came that far */
        status = salvage_lanes(&s);
    RAT_TEST_POINT("salvage.closed");
    if (status == RAT_OK && unlink(live_path) != 0 && errno != ENOENT)
        status = rat_status_from_errno(errno);
    RAT_TEST_POINT("salvage.unlinked");
    if (status == RAT_OK && s.outlet.writer.fd >= 0)
        status = publish(&s);
    RAT_TEST_POINT("salvage.published");
    rat_outlet_free(&s.outlet);
    return status;
}

enum rat_status rat_salvage_part(const char *path, struct rat_salvage *out)
{
    out->path[0] = '\0';
    struct stat before = {0};
    (void)stat(path, &before);
    struct rat_segment_writer writer;
    enum rat_status status = rat_segment_adopt(&writer, path);
    if (status != RAT_OK)
        return status;
    RAT_TEST_POINT("salvage.adopted");
    if ((uint64_t)before.st_size > writer.length)
        out->cut_bytes += (uint64_t)before.st_size - writer.length;
    if (writer.length == 0) {
        status = unlink(path) == 0 || errno == ENOENT ? RAT_OK : rat_status_from_errno(errno);
    } else {
        status = rat_segment_publish(&writer);
        if (status == RAT_OK) {
            out->segments++;
            memcpy(out->path, writer.path, sizeof out->path);
        }
    }
    rat_segment_close(&writer);
    RAT_TEST_POINT("salvage.published");
    return status;
}
