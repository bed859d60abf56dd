/* model_support.h - what the tests of model/ share: a tape of chunks made by the real encoder, and a log of a replay.
 *
 * One tick is one ns, so that times in tests are those in the log.
 */
#ifndef RAT_TEST_MODEL_SUPPORT_H
#define RAT_TEST_MODEL_SUPPORT_H

#include "wire_support.h"

#include "model/profile.h"
#include "model/replay.h"

#define CTX 1u /* the main thread */

struct tape {
    struct session session;
    struct rat_encoder *encoder;
    struct rat_buffer out;
    struct words words;
    uint64_t now, base;
    struct rat_totals totals;
    uint64_t drops;    /* to be counted in the chunk at hand */
    uint64_t sequence; /* of the chunk at hand */
    uint64_t session_sequence;
    uint32_t segment, lane;
    size_t chunk_at;   /* where the last chunk begins */
};

UNUSED static void tape_open(struct tape *tape)
{
    memset(tape, 0, sizeof *tape);
    session_open(&tape->session);
    tape->session.head.ticks_per_s = 1000000000u;
    rat_buffer_init(&tape->out, (size_t)64 << 20);
    assert_int_equal(rat_encoder_new(1 << 20, 0, &tape->encoder), RAT_OK);
    rat_encoder_begin_segment(tape->encoder);
    tape->sequence = tape->session_sequence = tape->segment = tape->lane = 1;
    assert_int_equal(add_context(&tape->session, RAT_CONTEXT_THREAD, 0, "main"), CTX);
}

UNUSED static void tape_close(struct tape *tape)
{
    rat_encoder_free(tape->encoder);
    rat_buffer_free(&tape->out);
    free(tape->words.words);
    session_close(&tape->session);
}

UNUSED static uint32_t frame(struct tape *tape, const char *method)
{
    return add_frame(&tape->session, "A", method);
}

static uint64_t delta_to(struct tape *tape, uint64_t at)
{
    uint64_t delta = at - tape->now;
    tape->now = at;
    return delta;
}

UNUSED static void tape_plain(struct tape *tape, uint64_t at, enum rat_event_kind kind, uint32_t id)
{
    push_event(&tape->words, kind, id, delta_to(tape, at));
}

UNUSED static void tape_call(struct tape *tape, uint64_t at, uint32_t id)
{
    tape_plain(tape, at, RAT_EVENT_CALL, id);
}

UNUSED static void tape_return(struct tape *tape, uint64_t at)
{
    tape_plain(tape, at, RAT_EVENT_RETURN, 0);
}

/* Entries are rat_event_entry values, up to the first 0. */
UNUSED static void tape_snapshot_of(struct tape *tape, uint64_t at, uint32_t context, uint32_t reason,
                                    const uint32_t *entries)
{
    uint64_t payload[66] = {0};
    uint32_t depth = 0, base = 0;
    for (; entries[depth] != 0; depth++) {
        payload[2 + depth / 2] |= (uint64_t)entries[depth] << (depth % 2 * 32);
        base += (entries[depth] & 0xFF) == RAT_FRAME_BASE;
    }
    payload[0] = rat_event_pair(context, depth);
    payload[1] = rat_event_pair(base, reason);
    push_rich(&tape->words, RAT_EVENT_SNAPSHOT, payload, 2 + (depth + 1) / 2, delta_to(tape, at));
}

/* tape_snapshot(tape, at, method ids...) of the main thread, for no stated reason but a new slot. */
#define ENTRIES(...) ((const uint32_t[]){__VA_ARGS__ __VA_OPT__(,) 0})
#define tape_snapshot(tape, at, ...)                                                               \
    tape_snapshot_of(tape, at, CTX, RAT_SNAPSHOT_SLOT, ENTRIES(__VA_ARGS__))
#define RUBY(id) rat_event_entry(id, RAT_FRAME_INSTANCE)
#define BASE(id) rat_event_entry(id, RAT_FRAME_BASE)

UNUSED static void tape_end(struct tape *tape, uint64_t at, uint32_t context, enum rat_end_reason reason)
{
    uint64_t payload = rat_event_pair(context, reason);
    push_rich(&tape->words, RAT_EVENT_END, &payload, 1, delta_to(tape, at));
}

static struct rat_chunk_info tape_info(struct tape *tape)
{
    return (struct rat_chunk_info){
        .session = &tape->session.head,
        .segment = tape->segment,
        .lane = tape->lane,
        .sequence = tape->sequence,
        .reason = RAT_REASON_PERIOD,
        .opened = tape->totals,
        .closed = tape->totals,
        .start = {.ticks = tape->base, .monotonic_ns = tape->base, .realtime_ns = tape->base + 1000000},
        .end = {.ticks = tape->now + 1, .monotonic_ns = tape->now + 1, .realtime_ns = tape->now + 1000001},
    };
}

/* The events at hand become a chunk. `keep` false: it is as if the chunk had never been written. */
static void tape_flip_as(struct tape *tape, struct rat_chunk_info info, bool keep)
{
    size_t before = tape->out.length;
    tape->chunk_at = before;
    info.closed.stored += tape->words.events;
    info.closed.drop[RAT_DROP_SLOT_FULL] += tape->drops;
    assert_int_equal(rat_encoder_lane_chunk(tape->encoder, &info, tape->words.words, tape->words.count,
                                            tape->words.events, tape->base, session_view(&tape->session), &tape->out),
                     RAT_OK);
    rat_encoder_settle(tape->encoder, keep);
    if (!keep)
        tape->out.length = before;
    tape->totals = info.closed;
    tape->words.count = tape->words.events = 0;
    tape->base = tape->now;
    tape->drops = 0;
    tape->sequence++;
}

UNUSED static void tape_flip(struct tape *tape)
{
    tape_flip_as(tape, tape_info(tape), true);
}

UNUSED static void tape_lose(struct tape *tape)
{
    tape_flip_as(tape, tape_info(tape), false);
}

static void tape_session_chunk_with(struct tape *tape, enum rat_reason reason, const struct rat_lane_mark *marks,
                                    uint32_t mark_count)
{
    struct rat_chunk_info info = tape_info(tape);
    info.lane = 0;
    info.reason = reason;
    info.sequence = tape->session_sequence++;
    info.opened = info.closed = (struct rat_totals){0};
    info.marks = marks;
    info.mark_count = mark_count;
    info.with_session = reason == RAT_REASON_OPENING;
    assert_int_equal(rat_encoder_session_chunk(tape->encoder, &info,
                                               reason == RAT_REASON_CLOSING ? session_view(&tape->session) : NULL,
                                               &tape->out),
                     RAT_OK);
    rat_encoder_settle(tape->encoder, true);
}

/* An opening or closing chunk. */
UNUSED static void tape_session_chunk(struct tape *tape, enum rat_reason reason)
{
    tape_session_chunk_with(tape, reason, NULL, 0);
}

/* A closing chunk that says how far this lane has come. */
UNUSED static void tape_marked_closing(struct tape *tape)
{
    struct rat_lane_mark mark = {.lane = tape->lane, .sequence = tape->sequence - 1, .closed = tape->totals};
    tape_session_chunk_with(tape, RAT_REASON_CLOSING, &mark, 1);
}

UNUSED static void tape_next_segment(struct tape *tape)
{
    rat_encoder_begin_segment(tape->encoder);
    tape->segment++;
}

/* ---------------------------------------------------------------- the log of a replay */

struct log {
    char text[16384];
    size_t length;
    struct rat_replay *replay;
};

__attribute__((format(printf, 2, 3))) static void log_line(struct log *log, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(log->text + log->length, sizeof log->text - log->length, format, list);
    va_end(list);
    assert_true(length >= 0 && log->length + (size_t)length < sizeof log->text);
    log->length += (size_t)length;
}

static const char *method_of(struct log *log, uint32_t id)
{
    static char name[64];
    const struct rat_catalog_frame *entry = rat_catalog_frame(rat_replay_catalog(log->replay), id);
    struct rat_catalog_name method = rat_catalog_name(rat_replay_catalog(log->replay), entry->method);
    snprintf(name, sizeof name, "%.*s%s", (int)method.length, (const char *)method.text,
             entry->kind == RAT_FRAME_BASE ? "(base)" : "");
    return name;
}

/* "+a 10" a call at 10; "~a 10" open since before; "-a 20/5" left after 20 with 5 of self; how it ended if oddly. */
static enum rat_status log_enter(void *user, struct rat_replay_context *context, struct rat_open_frame *open)
{
    (void)context;
    log_line(user, "%c%s %llu\n", open->before ? '~' : '+', method_of(user, open->frame),
             (unsigned long long)open->since_ns);
    return RAT_OK;
}

static void log_leave(void *user, struct rat_replay_context *context, const struct rat_open_frame *open,
                      uint64_t total_ns, uint64_t self_ns, enum rat_left how)
{
    (void)context;
    static const char *const ends[] = {"", " unwind", " stop", " died", " fork", " reader", " open"};
    log_line(user, "-%s %llu/%llu%s\n", method_of(user, open->frame), (unsigned long long)total_ns,
             (unsigned long long)self_ns, ends[how]);
}

/* Steps of `events` until no more is to be had; why. */
static enum rat_status replay_on(struct rat_replay *replay, uint64_t events)
{
    enum rat_status status;
    while ((status = rat_replay_step(replay, events)) == RAT_OK)
        ;
    return status;
}

UNUSED static void replay_sources(struct log *log, const struct rat_source *sources, size_t count)
{
    struct rat_visitor visitor = {.user = log, .enter = log_enter, .leave = log_leave};
    log->length = 0;
    log->text[0] = '\0';
    assert_int_equal(rat_replay_new(sources, count, 0, &visitor, &log->replay), RAT_OK);
    assert_int_equal(replay_on(log->replay, 1), RAT_END); /* small steps: they must not show */
}

/* Replay what is on the tape, from memory that ends at a guard page. */
UNUSED static void replay_tape(struct log *log, const struct tape *tape)
{
    struct guarded guarded = guard(tape->out.bytes, tape->out.length);
    replay_sources(log, &(struct rat_source){.bytes = guarded.bytes, .length = tape->out.length}, 1);
    unguard(&guarded);
}

UNUSED static const struct rat_replay_session *only_session(const struct log *log)
{
    assert_int_equal(rat_replay_session_count(log->replay), 1);
    return rat_replay_session(log->replay, 0);
}

UNUSED static const struct rat_lane_account *lane_account(const struct log *log, uint32_t number)
{
    const struct rat_session_account *account = &only_session(log)->account;
    for (size_t i = 0; i < account->lane_count; i++)
        if (account->lanes[i].lane == number)
            return &account->lanes[i];
    fail_msg("lane %u was not met", number);
    return NULL;
}

UNUSED static uint64_t findings(const struct log *log)
{
    uint64_t count = 0;
    for (int i = 0; i < RAT_FINDINGS; i++)
        count += only_session(log)->account.findings[i].count;
    return count;
}

#define assert_log(log, expected) assert_string_equal((log)->text, expected)

#endif
