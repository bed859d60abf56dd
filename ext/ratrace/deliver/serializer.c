/* Design notes.
 *
 * Actors.     The serializer thread (here), one producer a lane (record/lane.h), callers of flush and stop, a signal or
 *             fork at any moment. The thread holds no GVL, sees no VALUE, and blocks every signal.
 * Constraint. It may be late, the disk may refuse; no event may be told twice, and none may be lost without a count.
 *
 * A round, from this side:
 *     1  flip_begin on each lane that is wanted: its period is over, it is more than half full, somebody asked
 *     2  one fence for all that began
 *     3  flip_wait on each: a drain, or pending (asked again each poll, without another fence), or broken
 *     4  each lane with a drain: an open segment, encode, append, flip_done, in this order
 *     5  a segment that is large or old: closing chunk, publish
 *
 * From the producer's side: nothing but step 1 is seen, and that only as a held slot. When step 4 fails the drain stays
 *   unsettled, so flip_begin refuses the lane: the producer goes on in the other slot, fills it, then drops (slot_full).
 * Failed writes. The encoded chunk stays in the outlet and is appended again next period; only if its segment was lost
 *   meanwhile is it encoded anew, because names are relative to a segment. Lanes behind it keep their drains. So one
 *   chunk at most is encoded and unsettled, and a retry costs one write.
 * Chunks given up (no memory to encode, words that do not add up) are gaps: the totals run on over them, so the next
 *   chunk's opening totals tell the loss, and a label tells the cause. abandoned_seq is stored before the slot can be
 *   given out again (it is, by the next flip).
 * A fence that fails disables the lanes that needed it. Their slots are never drained; a last chunk without events
 *   tells the loss at stop.
 * Flush. What was recorded before the call is in the active slot, or in a drain, or in a pending flip with some of it
 *   in the other slot. If anything is in progress, two rounds that complete are enough, else one.
 * Kill at any step: salvage.c. Fork at any step: the child frees our memory only if `working` is 0, which is stored
 *   around everything that changes it; otherwise it leaks it.
 * Poll. A slot filled at 300 MB/s from half full on must be met before it is full; 1 to 10 ms. A slot that became half
 *   full while another was being written is met at once: the first chunks take three times as long as later ones, because
 *   the encoder's memory is new.
 */
#include "deliver/serializer.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (UINT32_C(512) << 10)
#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define FILL_RATE UINT64_C(300000000) /* bytes a second */
#define INSIDE_NS (5 * SECOND)        /* how long a flush waits for a producer that sits inside */
#define ANSWER_NS (30 * SECOND)       /* how long a caller waits for the thread */
#define STOP_ROUNDS 4

uint64_t rat_serializer_stop_ns = 10 * SECOND;

static uint64_t now_ns(void)
{
    return rat_clock_ns(CLOCK_MONOTONIC);
}

void rat_serializer_debug(const struct rat_serializer *s, const char *format, ...)
{
    if (!s->debug)
        return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    dprintf(STDERR_FILENO, "ratrace: %s\n", line); /* no lock a forked child could find taken */
}

static struct rat_serial_lane *lane_at(struct rat_serializer *s, uint32_t index)
{
    /* acquire: the consumer as rat_lane_open left it */
    return atomic_load_explicit(&s->lanes[index].added, memory_order_acquire) ? &s->lanes[index] : NULL;
}

#define FOR_LANES(s, index, lane)                                                                  \
    for (uint32_t index = 0; index < RAT_LANES; index++)                                           \
        for (struct rat_serial_lane *lane = lane_at(s, index); lane != NULL; lane = NULL)

/* ---------------------------------------------------------------- steps 1 to 3 */

/* Flip the lanes whose wanted[] is not 0. True: a producer sits inside one of them. */
static bool drain_lanes(struct rat_serializer *s, const enum rat_reason wanted[RAT_LANES])
{
    bool begun[RAT_LANES] = {false}, fresh[RAT_LANES] = {false}, fence = false, pending = false;
    struct rat_anchor now = rat_anchor_take((enum rat_clock_kind)s->outlet.head->clock);
    FOR_LANES (s, i, lane) {
        bool resumed = lane->consumer.pending;
        if (wanted[i] == 0 || !rat_lane_flip_begin(&lane->consumer, &now))
            continue;
        begun[i] = true;
        if (!resumed) {
            fresh[i] = fence = true;
            lane->reason = wanted[i];
            s->counts.flips++;
        }
    }
    if (fence && rat_fence_all(s->fence) != RAT_OK) {
        FOR_LANES (s, i, lane) {
            if (!fresh[i])
                continue;
            rat_lane_disable(lane->consumer.lane, RAT_LOST_FENCE_FAILED);
            begun[i] = false;
            rat_serializer_debug(s, "membarrier failed: lane %u is disabled", i + 1);
        }
    }
    FOR_LANES (s, i, lane) {
        if (!begun[i])
            continue;
        switch (rat_lane_flip_wait(&lane->consumer, &lane->drain)) {
        case RAT_FLIP_DRAIN:
            lane->end = rat_anchor_take((enum rat_clock_kind)s->outlet.head->clock); /* no event is later */
            break;
        case RAT_FLIP_PENDING:
            pending = true;
            s->counts.giveups += fresh[i];
            break;
        case RAT_FLIP_BROKEN:
            rat_serializer_debug(s, "an invariant failed: lane %u is disabled", i + 1);
            break;
        }
    }
    return pending;
}

/* ---------------------------------------------------------------- step 5 */

/* Not of a lane that gave chunks up since: its next chunk says why they are missing. */
static struct rat_outlet_marks mark_lanes(struct rat_serializer *s)
{
    struct rat_outlet_marks marks = {.count = 0};
    FOR_LANES (s, i, lane)
        if (lane->settled_seq > 0 && lane->lost_count == 0) /* we wrote both */
            marks.lane[marks.count++] =
                (struct rat_lane_mark){.lane = i + 1, .sequence = lane->settled_seq, .closed = lane->totals};
    return marks;
}

static enum rat_status close_segment(struct rat_serializer *s)
{
    struct rat_dict_view dict;
    bool known = rat_dict_view(s->mapping, s->mapped, s->outlet.head->tables_at, &dict) == RAT_OK;
    struct rat_outlet_marks marks = mark_lanes(s);
    enum rat_status status = rat_outlet_finish(&s->outlet, RAT_REASON_CLOSING, known ? &dict : NULL, &marks);
    if (status == RAT_OK)
        status = rat_outlet_publish(&s->outlet);
    if (status == RAT_OK)
        rat_serializer_debug(s, "published %s", s->outlet.published);
    return status;
}

static void note_outcome(struct rat_serializer *s, enum rat_status status)
{
    if (status != RAT_OK && s->failure == RAT_OK)
        rat_serializer_debug(s, "cannot write to %s: %s; trying again each period", s->outlet.head->out_dir,
              rat_status_text(status));
    else if (status == RAT_OK && s->failure != RAT_OK)
        rat_serializer_debug(s, "writing to %s again", s->outlet.head->out_dir);
    s->failure = status;
}

/* Write what is drained, until something fails. */
static enum rat_status write_lanes(struct rat_serializer *s, bool rotate)
{
    enum rat_status status = RAT_OK;
    bool tried = false;
    uint32_t first = s->first_lane;
    for (uint32_t i = 0; i < RAT_LANES && status == RAT_OK; i++) {
        uint32_t index = (first + i) % RAT_LANES;
        struct rat_serial_lane *lane = lane_at(s, index);
        if (lane == NULL || !lane->consumer.drained)
            continue;
        tried = true;
        status = rat_serial_lane_write(s, lane, index);
        if (status == RAT_OK && rat_outlet_is_large(&s->outlet, s->segment_bytes))
            status = close_segment(s);
    }
    if (status == RAT_OK && rotate && rat_outlet_is_old(&s->outlet, s->segment_age_ns, now_ns())) {
        tried = true;
        status = close_segment(s);
    }
    if (tried)
        note_outcome(s, status);
    return status;
}

/* ---------------------------------------------------------------- rounds */

static bool is_half_full(const struct rat_serial_lane *lane)
{
    return rat_lane_fill(&lane->consumer) > lane->consumer.capacity / 2;
}

/* The lanes that cannot wait: a flip to resume, a slot more than half full. */
static bool choose_urgent(struct rat_serializer *s, enum rat_reason wanted[RAT_LANES])
{
    bool any = false;
    FOR_LANES (s, i, lane) {
        wanted[i] = is_half_full(lane) ? RAT_REASON_HALF_FULL : lane->consumer.pending ? RAT_REASON_PERIOD : 0;
        any = any || wanted[i] != 0;
    }
    return any;
}

static void choose_rest(struct rat_serializer *s, enum rat_reason wanted[RAT_LANES], enum rat_reason reason)
{
    FOR_LANES (s, i, lane)
        if (wanted[i] == 0)
            wanted[i] = reason;
}

static bool has_drain(struct rat_serializer *s)
{
    bool any = false;
    FOR_LANES (s, i, lane)
        any = any || lane->consumer.drained;
    return any;
}

/* One poll. True: something was written, and meanwhile another slot became half full. */
static bool tick(struct rat_serializer *s)
{
    uint64_t chunks = s->outlet.counts.chunks;
    enum rat_reason wanted[RAT_LANES] = {0};
    bool urgent = choose_urgent(s, wanted);
    uint64_t now = now_ns();
    bool period = now >= s->next_period_ns;
    bool old = rat_outlet_is_old(&s->outlet, s->segment_age_ns, now) && (s->failure == RAT_OK || period);
    if (period) {
        s->next_period_ns = now + s->period_ns;
        if (s->hold != NULL)
            (void)s->hold(s->owner); /* stats show it when the file is lost */
    }
    if (period || old)
        choose_rest(s, wanted, old ? RAT_REASON_ROTATE : RAT_REASON_PERIOD);
    if (urgent || period || old)
        (void)drain_lanes(s, wanted);
    if (old || (has_drain(s) && (s->failure == RAT_OK || period)))
        (void)write_lanes(s, true); /* its outcome is noted */
    if (s->outlet.counts.chunks == chunks)
        return false;
    bool again = false;
    FOR_LANES (s, i, lane)
        again = again || is_half_full(lane);
    return again;
}

static void pause_ns(uint64_t ns)
{
    struct timespec time = {.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
    nanosleep(&time, NULL);
}

/* All that was recorded before this call; see the notes. RAT_BUSY: a producer sits inside. */
static enum rat_status flush_lanes(struct rat_serializer *s, enum rat_reason reason)
{
    int rounds = 1;
    FOR_LANES (s, i, lane)
        if (lane->consumer.pending || lane->consumer.drained)
            rounds = 2;
    uint64_t deadline = now_ns() + INSIDE_NS;
    bool waiting = false;
    while (rounds > 0) {
        enum rat_reason wanted[RAT_LANES] = {0};
        (void)choose_urgent(s, wanted);
        if (!waiting)
            choose_rest(s, wanted, reason);
        waiting = drain_lanes(s, wanted);
        enum rat_status status = write_lanes(s, false);
        if (status != RAT_OK)
            return status;
        if (!waiting)
            rounds--;
        else if (now_ns() >= deadline)
            return RAT_BUSY;
        else
            pause_ns(MS);
    }
    return RAT_OK;
}

/* ---------------------------------------------------------------- stop */

static bool is_drained(struct rat_serializer *s)
{
    bool left = false;
    FOR_LANES (s, i, lane)
        left = left || (rat_lane_fill(&lane->consumer) > 0 &&
                        atomic_load_explicit(&lane->consumer.lane->state, memory_order_acquire) == RAT_LANE_OPEN);
    return !left;
}

static enum rat_status finish(struct rat_serializer *s)
{
    enum rat_status status = RAT_OK;
    for (int rounds = 0; rounds < STOP_ROUNDS && status == RAT_OK; rounds++) {
        status = flush_lanes(s, RAT_REASON_STOP);
        if (status == RAT_BUSY) { /* no producer comes any more, so one died inside */
            FOR_LANES (s, i, lane)
                if (lane->consumer.pending)
                    rat_lane_disable(lane->consumer.lane, RAT_LOST_INVARIANT);
            status = RAT_OK;
        }
        if (is_drained(s))
            break;
    }
    for (uint32_t i = 0; i < RAT_LANES && status == RAT_OK; i++) {
        struct rat_serial_lane *lane = lane_at(s, i);
        if (lane != NULL)
            status = rat_serial_lane_finish(s, lane, i);
    }
    /* a session that recorded nothing still tells so, once */
    if (status == RAT_OK && (s->outlet.writer.fd >= 0 || s->outlet.counts.segments == 0))
        status = rat_outlet_ready(&s->outlet);
    if (status == RAT_OK && s->outlet.writer.fd >= 0)
        status = close_segment(s);
    note_outcome(s, status);
    return status;
}

/* ---------------------------------------------------------------- thread */

static struct timespec to_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
}

/* Called with the lock: the copy stats read. */
static void show_counts(struct rat_serializer *s)
{
    s->counts.outlet = s->outlet.counts;
    s->counts.failure = s->failure;
    if (s->outlet.writer.fd >= 0)
        memcpy(s->counts.part, s->outlet.writer.path, sizeof s->counts.part);
    else
        s->counts.part[0] = '\0';
    s->shown = s->counts;
}

static void beat(struct rat_serializer *s, uint64_t now)
{
    if (s->beat == NULL || now < s->next_beat_ns)
        return;
    s->next_beat_ns = now + RAT_BEAT_NS;
    /* relaxed: numbers to look at, and a hint to do so */
    atomic_store_explicit(&s->beat->cpu_ns, rat_clock_ns(CLOCK_THREAD_CPUTIME_ID), memory_order_relaxed);
    atomic_fetch_or_explicit(&s->beat->due, RAT_BEAT_DUE, memory_order_relaxed);
}

static void *serializer_main(void *argument)
{
    struct rat_serializer *s = argument;
    prctl(PR_SET_NAME, "ratrace");
    s->next_period_ns = now_ns() + s->period_ns;
    s->next_beat_ns = now_ns() + RAT_BEAT_NS;
    bool again = false;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        struct timespec until = to_timespec(now_ns() + s->poll_ns);
        if (!again && s->ask == RAT_ASK_NOTHING && s->flushes_asked == s->flushes_done)
            pthread_cond_timedwait(&s->wake, &s->lock, &until);
        uint64_t asked = s->flushes_asked;
        bool stop = s->ask == RAT_ASK_STOP, flush = asked != s->flushes_done;
        pthread_mutex_unlock(&s->lock);

        atomic_exchange_explicit(&s->working, 1, memory_order_seq_cst); /* before anything is changed */
        enum rat_status status = RAT_OK;
        if (stop)
            status = finish(s);
        else if (flush)
            status = flush_lanes(s, RAT_REASON_FLUSH);
        again = !stop && !flush && tick(s);
        beat(s, now_ns());

        pthread_mutex_lock(&s->lock);
        show_counts(s);
        atomic_store_explicit(&s->working, 0, memory_order_release); /* after everything was changed */
        if (flush || stop) {
            s->flushes_done = asked;
            s->flush_status = status;
            pthread_cond_broadcast(&s->done);
        }
        if (stop) {
            s->stop_status = status;
            s->has_ended = true;
            break;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum rat_status rat_serializer_spawn(pthread_t *thread, void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return RAT_NO_MEMORY;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited by the thread */
    int error = pthread_create(thread, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0 ? RAT_OK : RAT_THREAD;
}

static uint64_t poll_interval(uint64_t slot_bytes)
{
    uint64_t half = slot_bytes / 2 * 1000 / (FILL_RATE / MS); /* ns until the other half is full */
    return half < MS ? MS : half > 10 * MS ? 10 * MS : half;
}

enum rat_status rat_serializer_start(struct rat_serializer *s)
{
    s->poll_ns = poll_interval(s->outlet.head->slot_bytes);
    if (s->period_ns < s->poll_ns)
        s->poll_ns = s->period_ns > MS ? s->period_ns : MS;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &monotonic);
    pthread_cond_init(&s->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return rat_serializer_spawn(&s->thread, serializer_main, s);
}

void rat_serializer_add_lane(struct rat_serializer *s, uint32_t index)
{
    atomic_store_explicit(&s->lanes[index].added, 1, memory_order_release); /* the consumer first */
}

enum rat_status rat_serializer_flush(struct rat_serializer *s)
{
    struct timespec until = to_timespec(now_ns() + ANSWER_NS);
    enum rat_status status = RAT_OK;
    int late = 0;
    pthread_mutex_lock(&s->lock);
    uint64_t mine = ++s->flushes_asked;
    pthread_cond_signal(&s->wake);
    while (s->flushes_done < mine && late == 0)
        late = pthread_cond_timedwait(&s->done, &s->lock, &until);
    status = late == 0 ? s->flush_status : RAT_LATE;
    pthread_mutex_unlock(&s->lock);
    return status;
}

enum rat_status rat_serializer_stop(struct rat_serializer *s)
{
    struct timespec until = to_timespec(now_ns() + rat_serializer_stop_ns);
    int late = 0;
    pthread_mutex_lock(&s->lock);
    s->ask = RAT_ASK_STOP;
    pthread_cond_signal(&s->wake);
    while (!s->has_ended && late == 0)
        late = pthread_cond_timedwait(&s->done, &s->lock, &until);
    bool ended = s->has_ended;
    pthread_mutex_unlock(&s->lock);
    if (!ended) {
        pthread_detach(s->thread);
        return RAT_LATE;
    }
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    return s->stop_status;
}

void rat_serializer_abandon(struct rat_serializer *s)
{
    rat_outlet_abandon(&s->outlet);
    if (atomic_load_explicit(&s->working, memory_order_acquire) == 0)
        rat_outlet_free(&s->outlet);
}
