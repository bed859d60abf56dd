/* The shadow rules of record/recorder.h, by what the stream tells: a lane and a dictionary in plain memory, slots
 * drained on demand and decoded by the few lines below, which know event.h and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "record/recorder.h"

#define FRAME_BYTES 64
#define STACK_TOP UINT64_C(0x7f0000000000) /* word of a fiber's first frame */
#define BIG_SLOT (1u << 20)
#define CONTEXTS 6       /* of the random walk */
#define DEPTH_MAX 120000
#define TEXT_MAX 4096

/* ---------------------------------------------------------------- the stream, read back */

struct stack {
    uint32_t *entries; /* as rat_event_entry packs them */
    size_t depth, capacity;
    bool known; /* told whole in this interval */
};

static void stack_push(struct stack *stack, uint32_t entry)
{
    if (stack->depth == stack->capacity) {
        stack->capacity = stack->capacity ? stack->capacity * 2 : 16;
        stack->entries = realloc(stack->entries, stack->capacity * sizeof *stack->entries);
        assert_non_null(stack->entries);
    }
    stack->entries[stack->depth++] = entry;
}

static bool stacks_equal(const struct stack *a, const struct stack *b)
{
    return a->depth == b->depth && (a->depth == 0 || memcmp(a->entries, b->entries, a->depth * 4) == 0);
}

struct reader {
    struct stack stacks[128]; /* by context id */
    uint32_t context;        /* whose the next event is; 0 = not said in this interval */
    uint64_t events, ticks;
    char text[TEXT_MAX];     /* the events, for the small tests */
    size_t length;
    void (*decoded)(struct reader *reader, enum rat_event_kind kind, void *user);
    void *user;
};

static __attribute__((format(printf, 2, 3))) void write_down(struct reader *reader, const char *format, ...)
{
    if (reader->length + 64 > TEXT_MAX)
        return;
    va_list arguments;
    va_start(arguments, format);
    reader->length += (size_t)vsnprintf(reader->text + reader->length, 64, format, arguments);
    va_end(arguments);
}

static struct stack *running(struct reader *reader)
{
    assert_int_not_equal(reader->context, 0); /* an event whose context was never told */
    struct stack *stack = &reader->stacks[reader->context];
    assert_true(stack->known);
    return stack;
}

static void read_snapshot(struct reader *reader, const uint64_t *payload, uint32_t words)
{
    uint32_t depth = (uint32_t)payload[0], base = (uint32_t)(payload[1] >> 32), reason = (uint32_t)payload[1];
    assert_int_equal(words, 2 + (depth + 1) / 2);
    reader->context = (uint32_t)(payload[0] >> 32);
    struct stack *stack = &reader->stacks[reader->context];
    stack->depth = 0;
    stack->known = true;
    write_down(reader, "%s %u:", reason == RAT_SNAPSHOT_REPAIR ? "repair" : "snapshot", reader->context);
    assert_in_range(reason, 1, 3);
    for (uint32_t i = 0; i < depth; i++) {
        uint32_t entry = (uint32_t)(payload[2 + i / 2] >> (i % 2 ? 32 : 0));
        assert_int_equal((entry & 0xFF) == RAT_FRAME_BASE, i < base);
        stack_push(stack, entry);
        write_down(reader, " %u%s", entry >> 8, i < base ? "b" : "");
    }
    write_down(reader, "\n");
}

static void read_pop(struct reader *reader, uint32_t count, bool is_return, bool is_c)
{
    struct stack *stack = running(reader);
    assert_true(stack->depth >= count);
    if (is_return) {
        uint32_t kind = stack->entries[stack->depth - 1] & 0xFF;
        assert_true(kind == RAT_FRAME_BASE || (kind == RAT_FRAME_C_INSTANCE) == is_c);
    }
    stack->depth -= count;
}

static void read_event(struct reader *reader, uint64_t word, const uint64_t *payload)
{
    uint32_t id = rat_event_id(word);
    switch (rat_event_kind(word)) {
    case RAT_EVENT_CALL:
    case RAT_EVENT_C_CALL: {
        bool is_c = rat_event_kind(word) == RAT_EVENT_C_CALL;
        stack_push(running(reader), rat_event_entry(id, is_c ? RAT_FRAME_C_INSTANCE : RAT_FRAME_INSTANCE));
        write_down(reader, "%s %u\n", is_c ? "c_call" : "call", id);
        break;
    }
    case RAT_EVENT_RETURN:
        read_pop(reader, 1, true, false);
        write_down(reader, "return\n");
        break;
    case RAT_EVENT_C_RETURN:
        read_pop(reader, 1, true, true);
        write_down(reader, "c_return\n");
        break;
    case RAT_EVENT_UNWIND:
        read_pop(reader, id, false, false);
        write_down(reader, "unwind %u\n", id);
        break;
    case RAT_EVENT_UNMATCHED:
        (void)running(reader);
        write_down(reader, "unmatched\n");
        break;
    case RAT_EVENT_SWITCH:
        reader->context = id;
        (void)running(reader); /* a context not told in this interval comes with a snapshot */
        write_down(reader, "switch %u\n", id);
        break;
    case RAT_EVENT_SNAPSHOT:
        read_snapshot(reader, payload, id);
        break;
    case RAT_EVENT_END: {
        static const char *const reasons[] = {"?", "stop", "died", "fork"};
        reader->stacks[payload[0] >> 32].depth = 0;
        reader->stacks[payload[0] >> 32].known = false;
        write_down(reader, "end %u %s\n", (uint32_t)(payload[0] >> 32), reasons[payload[0] & 3]);
        break;
    }
    case RAT_EVENT_NOTE:
        write_down(reader, "note %u %u\n", (uint32_t)(payload[0] >> 32), (uint32_t)payload[0]);
        break;
    default:
        fail_msg("kind %d in a slot", rat_event_kind(word));
    }
}

static void read_drain(struct reader *reader, const struct rat_drain *drain)
{
    for (size_t i = 0; i < 64; i++)
        reader->stacks[i].known = false; /* each interval tells what it needs */
    reader->context = 0;
    reader->ticks = drain->head->base_ticks;
    uint32_t events = 0;
    for (uint32_t at = 0; at < drain->count;) {
        uint64_t word = drain->words[at];
        uint32_t payload = rat_event_kind(word) >= RAT_EVENT_RICH ? rat_event_id(word) : 0;
        assert_true(at + 1 + payload <= drain->count);
        reader->ticks += rat_event_delta(word);
        if (rat_event_kind(word) == RAT_EVENT_GAP) {
            reader->ticks += drain->words[at + 1];
        } else {
            read_event(reader, word, drain->words + at + 1);
            events++;
            reader->events++;
            if (reader->decoded != NULL)
                reader->decoded(reader, rat_event_kind(word), reader->user);
        }
        at += 1 + payload;
    }
    assert_int_equal(events, drain->events);
}

/* ---------------------------------------------------------------- the rig */

struct rig {
    struct rat_lane_head *lane;
    uint64_t *slots;
    uint8_t *tables;
    struct rat_dict *dict;
    struct rat_lane_consumer consumer;
    struct rat_recorder recorder;
    struct reader reader;
    struct rat_context *contexts[64];
    size_t context_count;
    uint64_t now;
    /* what the verify callback was asked, and what it does */
    int verified;
    struct rat_context *verified_context;
    uint32_t verify_removes;
};

static enum rat_status reserve(void *owner, uint64_t at, uint64_t length)
{
    (void)owner, (void)at, (void)length;
    return RAT_OK;
}

static void rig_make(struct rig *rig, uint32_t slot_bytes, uint32_t contexts)
{
    struct rat_dict_caps caps = {.frames = 16, .names = 16, .contexts = contexts, .text = 4096};
    memset(rig, 0, sizeof *rig);
    size_t tables = rat_dict_tables_bytes(&caps);
    rig->lane = aligned_alloc(64, sizeof *rig->lane);
    rig->slots = calloc(2, slot_bytes);
    rig->tables = aligned_alloc(4096, tables + rat_dict_text_bytes(&caps));
    assert_true(rig->lane != NULL && rig->slots != NULL && rig->tables != NULL);
    memset(rig->lane, 0, sizeof *rig->lane);
    memset(rig->tables, 0, tables + rat_dict_text_bytes(&caps));
    assert_int_equal(rat_dict_new(rig->tables, 0, tables, &caps, reserve, NULL, &rig->dict), RAT_OK);
    rig->now = 1000;
    struct rat_anchor anchor = {.ticks = rig->now};
    rat_lane_open(rig->lane, rig->slots, slot_bytes, &anchor, &rig->recorder.lane, &rig->consumer, RAT_FENCE_SEQ_CST);
    rat_recorder_init(&rig->recorder, 1, rig->dict, RAT_CLOCK_MONOTONIC);
}

/* Everything stored so far goes to the reader; what it wrote down since the last time. */
static const char *rig_drain(struct rig *rig)
{
    struct rat_anchor anchor = {.ticks = rig->now};
    struct rat_drain drain;
    rig->reader.length = 0;
    rig->reader.text[0] = '\0';
    while (rat_lane_flip_begin(&rig->consumer, &anchor)) {
        assert_int_equal(rat_lane_flip_wait(&rig->consumer, &drain), RAT_FLIP_DRAIN);
        read_drain(&rig->reader, &drain);
        rat_lane_flip_done(&rig->consumer, true);
    }
    return rig->reader.text;
}

static uint64_t rig_dropped(const struct rig *rig)
{
    uint64_t dropped = 0;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        dropped += rig->lane->drop[cause];
    return dropped;
}

static void rig_assert_accounted(const struct rig *rig)
{
    assert_int_equal(rig->recorder.lane.attempts, rat_lane_stored(&rig->recorder.lane) + rig_dropped(rig));
    assert_int_equal(rig->lane->drop[RAT_DROP_CONTENDED], 0);
    assert_int_equal(rig->lane->state, RAT_LANE_OPEN);
}

static void rig_free(struct rig *rig)
{
    rig_assert_accounted(rig);
    rat_recorder_reset(&rig->recorder);
    for (size_t i = 0; i < rig->context_count; i++)
        if (rig->contexts[i] != NULL)
            rat_context_release(rig->contexts[i], NULL);
    for (size_t i = 0; i < 64; i++)
        free(rig->reader.stacks[i].entries);
    rat_dict_free(rig->dict);
    free(rig->lane);
    free(rig->slots);
    free(rig->tables);
}

static bool enter(struct rig *rig, struct rat_context *context)
{
    struct rat_context_entry entry = {.kind = RAT_CONTEXT_FIBER, .lane = 1, .seen_ticks = rig->now};
    rig->now++;
    rat_recorder_bury(&rig->recorder, rig->now);
    if (!rat_recorder_switch(&rig->recorder, context, &entry, rig->now))
        return false;
    rig->recorder.ec = (uintptr_t)context;
    return true;
}

static struct rat_context *new_context(struct rig *rig, bool fresh)
{
    struct rat_context *context = rat_context_new(fresh);
    assert_non_null(context);
    rig->contexts[rig->context_count++] = context;
    return context;
}

static void bury(struct rig *rig, struct rat_context *context)
{
    for (size_t i = 0; i < rig->context_count; i++)
        if (rig->contexts[i] == context)
            rig->contexts[i] = NULL;
    rat_context_release(context, &rig->recorder);
}

/* What the hook does (ruby/rb_hook.c): the short way where it is open, else the cold one. */
static void call(struct rig *rig, uintptr_t word, uint32_t id, bool is_c)
{
    struct rat_recorder *recorder = &rig->recorder;
    enum rat_event_kind event = is_c ? RAT_EVENT_C_CALL : RAT_EVENT_CALL;
    enum rat_frame_kind kind = is_c ? RAT_FRAME_C_INSTANCE : RAT_FRAME_INSTANCE;
    rig->now += 3;
    if (id != RAT_FRAME_HIDDEN && recorder->top->word > word && recorder->top != recorder->limit &&
        rat_lane_put(&recorder->lane, rat_event_word(event, id), rig->now, recorder->lane.strong)) {
        *++recorder->top = (struct rat_entry){.word = word, .id = id, .kind = kind};
        return;
    }
    if (recorder->top->word <= word)
        (void)rat_recorder_drop_stale(recorder, word, rig->now);
    rat_recorder_call(recorder, event, word, id, kind, rig->now);
}

static void give_back(struct rig *rig, uintptr_t word, bool is_c)
{
    struct rat_recorder *recorder = &rig->recorder;
    enum rat_event_kind event = is_c ? RAT_EVENT_C_RETURN : RAT_EVENT_RETURN;
    rig->now += 3;
    if (recorder->top->word == word && recorder->top->id != RAT_FRAME_HIDDEN &&
        rat_lane_put(&recorder->lane, rat_event_word(event, 0), rig->now, recorder->lane.strong)) {
        recorder->top--;
        return;
    }
    int64_t depth = rat_recorder_find(recorder, word);
    if (depth >= 0)
        rat_recorder_return(recorder, event, (uint32_t)depth, rig->now);
    else
        rat_recorder_unmatched(recorder, rig->now);
}

static uintptr_t word_at(uint32_t depth)
{
    return STACK_TOP - (uintptr_t)depth * FRAME_BYTES;
}

static void call_at(struct rig *rig, uint32_t depth, uint32_t id)
{
    call(rig, word_at(depth), id, false);
}

static void return_at(struct rig *rig, uint32_t depth)
{
    give_back(rig, word_at(depth), false);
}

static uint32_t note_verify(struct rat_recorder *recorder, void *owner)
{
    struct rig *rig = owner;
    rig->verified++;
    rig->verified_context = recorder->context;
    recorder->top -= rig->verify_removes;
    return rig->verify_removes;
}

static void watch_verify(struct rig *rig)
{
    rig->recorder.verify = note_verify;
    rig->recorder.owner = rig;
}

#define RIG(name, slot_bytes)                                                                      \
    struct rig *name = malloc(sizeof *name);                                                       \
    rig_make(name, slot_bytes, 16)
#define DONE(name)                                                                                 \
    do {                                                                                           \
        rig_free(name);                                                                            \
        free(name);                                                                                \
    } while (0)

/* ---------------------------------------------------------------- calls and returns */

static void test_a_call_and_its_return_are_told_after_one_snapshot(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call(rig, word_at(2), 8, true);
    give_back(rig, word_at(2), true);
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nc_call 8\nc_return\nreturn\n");
    assert_int_equal(rat_recorder_depth(&rig->recorder), 0);
    DONE(rig);
}

static void test_entries_whose_frames_vanished_are_unwound_by_the_next_call(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 5; depth++)
        call_at(rig, depth, depth);
    call_at(rig, 3, 9); /* frames 3 to 5 went without an event */
    return_at(rig, 3);
    return_at(rig, 2);
    assert_string_equal(rig_drain(rig),
                        "snapshot 1:\ncall 1\ncall 2\ncall 3\ncall 4\ncall 5\nunwind 3\ncall 9\nreturn\nreturn\n");
    assert_int_equal(rig->recorder.unwound, 3);
    DONE(rig);
}

static void test_a_return_that_matches_deeper_unwinds_what_lies_above(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 4; depth++)
        call_at(rig, depth, depth);
    return_at(rig, 2);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 1\ncall 2\ncall 3\ncall 4\nunwind 2\nreturn\n");
    assert_int_equal(rat_recorder_depth(&rig->recorder), 1);
    DONE(rig);
}

static void test_a_return_that_matches_nothing_pops_nothing(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    return_at(rig, 5);
    return_at(rig, 1);
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nunmatched\nreturn\nunmatched\n");
    assert_int_equal(rig->recorder.unmatched, 2);
    DONE(rig);
}

static void test_the_newest_entry_of_an_id_is_found(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, 8);
    call_at(rig, 3, 7);
    assert_int_equal(rat_recorder_find_id(&rig->recorder, 7), 0);
    assert_int_equal(rat_recorder_find_id(&rig->recorder, 8), 1);
    assert_int_equal(rat_recorder_find_id(&rig->recorder, 9), -1);
    assert_int_equal(rat_recorder_find(&rig->recorder, word_at(1)), 2);
    DONE(rig);
}

static void test_a_shadow_grows_to_100000_entries_and_back(void **state)
{
    (void)state;
    RIG(rig, 4 * BIG_SLOT);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 100000; depth++)
        call_at(rig, depth, 2 + depth % 5);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 100000);
    call_at(rig, 100001, 3); /* a new interval: all of it in one snapshot */
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 100001);
    for (uint32_t depth = 100001; depth >= 1; depth--)
        return_at(rig, depth);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 0);
    assert_int_equal(rig_dropped(rig), 0);
    DONE(rig);
}

/* ---------------------------------------------------------------- hidden frames */

static void test_hidden_frames_are_kept_and_never_told(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, RAT_FRAME_HIDDEN);
    call_at(rig, 3, 8);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\ncall 8\n");
    call_at(rig, 4, 9);
    assert_string_equal(rig_drain(rig), "snapshot 1: 7 8\ncall 9\n");
    return_at(rig, 2); /* ends 4 and 3, and itself is nobody's business */
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig), "snapshot 1: 7 8 9\nunwind 2\nreturn\n");
    DONE(rig);
}

static void test_unwinding_only_hidden_frames_tells_nothing(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, RAT_FRAME_HIDDEN);
    call_at(rig, 3, RAT_FRAME_HIDDEN);
    call_at(rig, 2, 8);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\ncall 8\n");
    DONE(rig);
}

static void test_a_context_that_comes_with_a_hidden_frame_is_told_before_its_first_event(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, RAT_FRAME_HIDDEN);
    call_at(rig, 2, 8);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 1);
    assert_int_equal(rig->reader.stacks[2].depth, 1);
    assert_int_equal(rig->reader.stacks[2].entries[0] >> 8, 8);
    DONE(rig);
}

static void test_a_context_that_comes_with_a_hidden_return_is_told_before_its_first_event(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, two);
    call_at(rig, 1, 8);
    call_at(rig, 2, RAT_FRAME_HIDDEN);
    enter(rig, one);
    call_at(rig, 1, 7);
    rig_drain(rig);
    enter(rig, one);
    call_at(rig, 2, 7);
    enter(rig, two);
    return_at(rig, 2);
    return_at(rig, 1);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[two->id].depth, 0);
    assert_int_equal(rig->reader.stacks[one->id].depth, 2);
    DONE(rig);
}

/* ---------------------------------------------------------------- base */

static void take_base(struct rig *rig, uint32_t frames)
{
    rat_recorder_begin_base(&rig->recorder);
    for (uint32_t i = 0; i < frames; i++)
        assert_true(rat_recorder_push_base(&rig->recorder, 2 + i));
}

static void test_base_frames_are_told_with_the_first_event(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, false));
    assert_true(rig->recorder.context->base_due);
    assert_true(rig->recorder.top->word <= word_at(4)); /* so that the first event goes the cold way */
    take_base(rig, 3);
    rat_recorder_call(&rig->recorder, RAT_EVENT_CALL, word_at(4), 9, RAT_FRAME_INSTANCE, rig->now);
    rig_drain(rig);
    const struct stack *stack = &rig->reader.stacks[1];
    assert_int_equal(stack->depth, 4);
    assert_int_equal(stack->entries[0], rat_event_entry(2, RAT_FRAME_BASE));
    assert_int_equal(stack->entries[3], rat_event_entry(9, RAT_FRAME_INSTANCE));
    DONE(rig);
}

static void test_a_base_taken_in_an_open_interval_is_told(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    enter(rig, new_context(rig, false));
    take_base(rig, 2);
    rat_recorder_return(&rig->recorder, RAT_EVENT_RETURN, 0, rig->now);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nsnapshot 2: 2b 3b\nreturn\n");
    assert_int_equal(rig->recorder.context->base, 1);
    DONE(rig);
}

static void test_a_settled_base_needs_no_count_for_later_events_above_it(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, false));
    take_base(rig, 3);
    assert_false(rig->recorder.top->word > word_at(4)); /* not counted yet: cold */
    rat_recorder_settle_base(&rig->recorder, word_at(4));
    assert_true(rig->recorder.top->word > word_at(4));
    assert_true(rig->recorder.top->word <= word_at(3)); /* from above the known place: counted again */
    rat_recorder_settle_base(&rig->recorder, word_at(3));
    for (uint32_t i = 1; i <= 3; i++)
        assert_true(rig->recorder.context->entries[i].word == word_at(3) + 1);
    DONE(rig);
}

static void test_base_frames_are_neither_stale_nor_found(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, false));
    take_base(rig, 2);
    assert_int_equal(rat_recorder_drop_stale(&rig->recorder, word_at(9), rig->now), 0);
    assert_int_equal(rat_recorder_find(&rig->recorder, 1), -1);
    assert_int_equal(rat_recorder_find_id(&rig->recorder, 3), -1);
    assert_int_equal(rat_recorder_above_base(&rig->recorder), 0);
    DONE(rig);
}

static void test_unwinding_into_the_base_shortens_it(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, false));
    take_base(rig, 3);
    rat_recorder_settle_base(&rig->recorder, word_at(4));
    call_at(rig, 4, 9);
    rat_recorder_unwind(&rig->recorder, 3, rig->now);
    assert_int_equal(rig->recorder.context->base, 1);
    assert_int_equal(rat_recorder_depth(&rig->recorder), 1);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 1);
    DONE(rig);
}

static void test_a_context_is_told_anew_after_a_restart(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    rat_recorder_restart(&rig->recorder);
    rat_recorder_repair(&rig->recorder, rig->now);
    take_base(rig, 1);
    rat_recorder_call(&rig->recorder, RAT_EVENT_CALL, word_at(2), 9, RAT_FRAME_INSTANCE, rig->now);
    rig_drain(rig);
    const struct stack *stack = &rig->reader.stacks[1];
    assert_int_equal(stack->depth, 2);
    assert_int_equal(stack->entries[0], rat_event_entry(2, RAT_FRAME_BASE));
    DONE(rig);
}

/* ---------------------------------------------------------------- intervals */

static void test_every_interval_begins_with_the_whole_stack(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 3; depth++) {
        call_at(rig, depth, depth + 1);
        rig_drain(rig);
    }
    return_at(rig, 3);
    assert_string_equal(rig_drain(rig), "snapshot 1: 2 3 4\nreturn\n");
    DONE(rig);
}

static void test_a_new_interval_verifies_the_shadow_and_says_so_when_it_was_wrong(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    watch_verify(rig);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, 8);
    rig_drain(rig);
    rig->verify_removes = 1;
    call_at(rig, 3, 9);
    assert_string_equal(rig_drain(rig), "repair 1: 7\ncall 9\n");
    DONE(rig);
}

/* What is taken off is still in the snapshot that its interval opens with: nobody else may take it off in between. */
static void test_no_shadow_is_verified_while_frames_of_it_are_taken_off(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    watch_verify(rig);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 4; depth++)
        call_at(rig, depth, 6 + depth);
    rig_drain(rig);
    rig->verify_removes = 2;
    call_at(rig, 2, 20);
    assert_string_equal(rig_drain(rig), "snapshot 1: 7 8 9 10\nunwind 3\ncall 20\n");
    assert_int_equal(rat_recorder_depth(&rig->recorder), 2);
    rig->verify_removes = 0;
    call_at(rig, 3, 21);
    call_at(rig, 4, 22);
    rig_drain(rig);
    rig->verify_removes = 3;
    return_at(rig, 2);
    assert_string_equal(rig_drain(rig), "snapshot 1: 7 20 21 22\nunwind 2\nreturn\n");
    assert_int_equal(rat_recorder_depth(&rig->recorder), 1);
    DONE(rig);
}

static void test_more_is_never_taken_off_than_there_is(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    watch_verify(rig);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    rig_drain(rig);
    rig->verify_removes = 1;
    return_at(rig, 1);
    assert_int_equal(rat_recorder_depth(&rig->recorder), 0);
    assert_int_equal(rat_recorder_above_base(&rig->recorder), 0);
    DONE(rig);
}

static void test_no_shadow_is_verified_against_another_fibers_stack(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    watch_verify(rig);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true), *three = new_context(rig, true);
    enter(rig, three);
    call_at(rig, 1, 6);
    enter(rig, two);
    call_at(rig, 1, 7);
    enter(rig, one);
    call_at(rig, 1, 8);
    bury(rig, three);
    rig_drain(rig);
    rig->verified = 0;
    enter(rig, two); /* the burial of `three` opens the interval while `one` is still current */
    call_at(rig, 2, 9);
    assert_int_equal(rig->verified, 1);
    assert_ptr_equal(rig->verified_context, two);
    DONE(rig);
}

static void test_after_the_first_loss_an_interval_takes_nothing_more(void **state)
{
    (void)state;
    RIG(rig, 64);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 5; depth++) /* the snapshot takes 3 of 8 words */
        call_at(rig, depth, depth);
    assert_int_equal(rig_dropped(rig), 0);
    call_at(rig, 6, 6);
    return_at(rig, 6);
    assert_int_equal(rig->lane->drop[RAT_DROP_SLOT_FULL], 2);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 1\ncall 2\ncall 3\ncall 4\ncall 5\n");
    return_at(rig, 5);
    assert_string_equal(rig_drain(rig), "snapshot 1: 1 2 3 4 5\nreturn\n");
    DONE(rig);
}

static void test_a_stack_too_deep_for_its_slot_is_counted_and_comes_back(void **state)
{
    (void)state;
    RIG(rig, 64);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 30; depth++) {
        call_at(rig, depth, 5);
        rig_drain(rig);
    }
    assert_true(rig_dropped(rig) > 0);
    for (uint32_t depth = 30; depth > 2; depth--)
        return_at(rig, depth);
    call_at(rig, 3, 9);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5 5 5 5 5 5 5 5 5\n"); /* the largest that fits */
    return_at(rig, 3);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5 9\nreturn\n");
    return_at(rig, 2);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5\nreturn\n");
    DONE(rig);
}

/* Deep recursion in a small slot: its events cost what others cost, not a walk over the stack each. */
static void test_a_stack_too_deep_for_its_slot_is_not_verified_for_each_event(void **state)
{
    (void)state;
    RIG(rig, 64);
    watch_verify(rig);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 10; depth++) {
        call_at(rig, depth, 5);
        rig_drain(rig);
    }
    rig->verified = 0;
    call_at(rig, 11, 5);
    rig_drain(rig); /* from here on the slot is empty, and each event may try it anew */
    for (uint32_t depth = 12; depth <= 100; depth++)
        call_at(rig, depth, 5);
    for (uint32_t depth = 100; depth > 10; depth--)
        return_at(rig, depth);
    assert_int_equal(rig->verified, 1); /* ten frames fit */
    call_at(rig, 11, 9);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5 5 5 5 5 5 5 5 5\n");
    DONE(rig);
}

static void test_hidden_frames_make_no_stack_too_deep_for_its_slot(void **state)
{
    (void)state;
    RIG(rig, 64);
    enter(rig, new_context(rig, true));
    for (uint32_t depth = 1; depth <= 11; depth++)
        call_at(rig, depth, 5);
    for (uint32_t depth = 12; depth <= 40; depth++)
        call_at(rig, depth, RAT_FRAME_HIDDEN);
    rig_drain(rig);
    for (uint32_t depth = 40; depth > 10; depth--)
        return_at(rig, depth);
    for (uint32_t depth = 11; depth <= 40; depth++)
        call_at(rig, depth, RAT_FRAME_HIDDEN);
    assert_string_equal(rig_drain(rig), "snapshot 1: 5 5 5 5 5 5 5 5 5 5\n");
    DONE(rig);
}

static void test_a_pause_longer_than_a_delta_goes_into_a_gap(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    rig->now += RAT_EVENT_DELTA_MAX * 3;
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nreturn\n");
    assert_int_equal(rig->reader.ticks, rig->now);
    DONE(rig);
}

/* ---------------------------------------------------------------- contexts */

static void test_each_context_has_a_stack_of_its_own(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, 8);
    enter(rig, one);
    enter(rig, one);
    return_at(rig, 1);
    enter(rig, two);
    return_at(rig, 1);
    assert_string_equal(rig_drain(rig),
                        "snapshot 1:\ncall 7\nsnapshot 2:\ncall 8\nswitch 1\nreturn\nswitch 2\nreturn\n");
    assert_int_equal(rig->recorder.switches, 4);
    DONE(rig);
}

static void test_a_dead_context_ends_at_the_next_burial_and_no_earlier(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, 8);
    bury(rig, one);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\nsnapshot 2:\ncall 8\n");
    enter(rig, two);
    return_at(rig, 1);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 0);
    assert_non_null(strstr(rig->reader.text, "end 1 died"));
    DONE(rig);
}

static void test_the_current_context_may_die(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    rig_drain(rig);
    bury(rig, one);
    enter(rig, two);
    call_at(rig, 1, 8);
    rig_drain(rig);
    assert_non_null(strstr(rig->reader.text, "end 1 died\nsnapshot 2:\ncall 8\n"));
    DONE(rig);
}

static void test_an_id_is_used_again_only_after_its_end_is_written(void **state)
{
    (void)state;
    struct rig *rig = malloc(sizeof *rig);
    rig_make(rig, BIG_SLOT, 2);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true), *three = new_context(rig, true);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, 8);
    assert_false(enter(rig, three)); /* the table is full */
    assert_int_equal(rig->lane->drop[RAT_DROP_OUT_OF_MEMORY], 1);
    rig_drain(rig);
    bury(rig, one);
    assert_true(enter(rig, two));
    call_at(rig, 2, 9);
    assert_false(enter(rig, three)); /* the end is told, its chunk is not written */
    rig_drain(rig);
    assert_true(enter(rig, three));
    assert_int_equal(three->id, 1);
    call_at(rig, 1, 6);
    rig_drain(rig);
    assert_int_equal(rig->reader.stacks[1].depth, 1);
    assert_int_equal(rig->reader.stacks[1].entries[0] >> 8, 6);
    DONE(rig);
}

/* Generations of contexts that die together, more of them than the first ring of retired ids holds. */
static void test_ids_of_many_dead_contexts_are_used_again_oldest_first(void **state)
{
    (void)state;
    enum { MANY = 100, GENERATIONS = 5 };
    struct rig *rig = malloc(sizeof *rig);
    rig_make(rig, BIG_SLOT, MANY + 1);
    struct rat_context *last = new_context(rig, true), *many[MANY];
    enter(rig, last);
    rat_context_id ids[MANY];
    for (int generation = 0; generation < GENERATIONS; generation++) {
        for (int i = 0; i < MANY; i++) {
            many[i] = rat_context_new(true);
            assert_true(enter(rig, many[i]));
            if (generation > 0)
                assert_int_equal(many[i]->id, ids[i]);
        }
        enter(rig, last);
        for (int i = MANY; i-- > 0;) { /* burial takes the last first */
            ids[i] = many[i]->id;
            rat_context_release(many[i], &rig->recorder);
        }
        enter(rig, last);
        call_at(rig, 1, 7);
        return_at(rig, 1);
        rig_drain(rig);
    }
    DONE(rig);
}

static void test_a_context_released_without_a_recorder_is_freed_at_once(void **state)
{
    (void)state;
    rat_context_release(rat_context_new(true), NULL);
    rat_context_release(rat_context_new(false), NULL); /* the leak check is the assertion */
}

static void test_a_context_that_was_never_told_is_buried_without_a_word(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *never = new_context(rig, true);
    enter(rig, new_context(rig, true));
    bury(rig, never);
    call_at(rig, 1, 7);
    rat_recorder_bury(&rig->recorder, rig->now);
    assert_string_equal(rig_drain(rig), "snapshot 1:\ncall 7\n");
    DONE(rig);
}

static void test_the_end_ends_every_context_with_open_frames(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *one = new_context(rig, true), *two = new_context(rig, true), *idle = new_context(rig, true);
    enter(rig, idle);
    call_at(rig, 1, 6);
    return_at(rig, 1);
    enter(rig, one);
    call_at(rig, 1, 7);
    enter(rig, two);
    call_at(rig, 1, 8);
    rig_drain(rig);
    rat_recorder_end_all(&rig->recorder, RAT_END_STOP, rig->now);
    rig_drain(rig);
    assert_non_null(strstr(rig->reader.text, "end 2 stop"));
    assert_non_null(strstr(rig->reader.text, "end 3 stop"));
    assert_null(strstr(rig->reader.text, "end 1"));
    for (int i = 1; i <= 3; i++)
        assert_int_equal(rig->reader.stacks[i].depth, 0);
    DONE(rig);
}

static void test_a_forgotten_context_begins_with_a_base(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *context = new_context(rig, true);
    enter(rig, context);
    call_at(rig, 1, 7);
    rig_drain(rig);
    rat_recorder_reset(&rig->recorder);
    rat_context_forget(context, false);
    assert_int_equal(rig->recorder.ec, 0);
    assert_int_equal(context->id, 0);
    assert_true(context->base_due);
    assert_ptr_equal(context->top, context->entries);
    rig->lane->drop[RAT_DROP_SLOT_FULL] = 0;
    DONE(rig);
}

static void test_of_chosen_methods_only_nothing_is_below_a_forgotten_context(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_context *context = new_context(rig, true);
    enter(rig, context);
    call_at(rig, 1, 7);
    rig->recorder.scoped = true;
    rat_recorder_restart(&rig->recorder);
    assert_false(context->base_due);
    assert_int_equal(rat_recorder_depth(&rig->recorder), 0);
    rig_drain(rig);
    rat_recorder_reset(&rig->recorder);
    rat_context_forget(context, true);
    assert_false(context->base_due);
    rig->lane->drop[RAT_DROP_SLOT_FULL] = 0;
    DONE(rig);
}

static void test_a_note_is_told_with_its_value(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    enter(rig, new_context(rig, true));
    rat_recorder_note(&rig->recorder, RAT_NOTE_PUBLIC_PATH, 42, rig->now);
    assert_string_equal(rig_drain(rig), "snapshot 1:\nnote 1 42\n");
    DONE(rig);
}

static void test_without_a_lane_nothing_is_told_and_nothing_breaks(void **state)
{
    (void)state;
    RIG(rig, BIG_SLOT);
    struct rat_recorder saved = rig->recorder;
    rat_lane_detach(&rig->recorder.lane);
    enter(rig, new_context(rig, true));
    call_at(rig, 1, 7);
    call_at(rig, 2, 8);
    return_at(rig, 1);
    assert_int_equal(rat_recorder_depth(&rig->recorder), 0);
    rig->recorder.lane = saved.lane;
    assert_string_equal(rig_drain(rig), "");
    DONE(rig);
}

/* ---------------------------------------------------------------- a random walk */

/* The real stack of one context, as a VM would have it, and what the shadow must be. */
struct life {
    struct rat_context *context;
    uint32_t real;                 /* frames there are */
    struct rat_entry shadow[4096]; /* entries there must be; the stale ones included */
    uint32_t depth;
};

/* What the reader must hold once it has read `events`. */
struct promise {
    uint64_t events;
    uint32_t context;
    struct stack stack;
};

struct walk {
    struct rig *rig;
    struct life lives[CONTEXTS];
    struct life *life;
    uint64_t seed;
    struct promise promises[8192];
    size_t made, kept;
    uint64_t checks, verified;
    bool returning; /* the recorder's top entry is the one whose return is told */
};

static uint64_t draw(struct walk *walk, uint64_t below)
{
    uint64_t z = walk->seed += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (z ^ z >> 31) % below;
}

static void visible(const struct life *life, struct stack *out)
{
    out->depth = 0;
    for (uint32_t i = 0; i < life->depth; i++)
        if (life->shadow[i].id != RAT_FRAME_HIDDEN)
            stack_push(out, rat_event_entry(life->shadow[i].id, (enum rat_frame_kind)life->shadow[i].kind));
}

static void keep_promises(struct reader *reader, enum rat_event_kind kind, void *user)
{
    (void)kind;
    struct walk *walk = user;
    while (walk->kept < walk->made && walk->promises[walk->kept].events <= reader->events) {
        struct promise *promise = &walk->promises[walk->kept++];
        assert_int_equal(promise->events, reader->events);
        assert_true(reader->stacks[promise->context].known);
        assert_true(stacks_equal(&reader->stacks[promise->context], &promise->stack));
        walk->checks++;
    }
}

/* The walk's own idea of the shadow is the recorder's. */
static void assert_shadow(const struct walk *walk)
{
    const struct rat_recorder *recorder = &walk->rig->recorder;
    assert_int_equal(rat_recorder_depth(recorder), walk->life->depth);
    for (uint32_t i = 0; i < walk->life->depth; i++) {
        const struct rat_entry *is = &recorder->context->entries[i + 1], *must = &walk->life->shadow[i];
        assert_true(is->id == must->id && is->kind == must->kind);
        assert_true(must->kind == RAT_FRAME_BASE || is->word == must->word);
    }
}

static uint32_t keep_running(struct rat_entry *entries, uint32_t base, uint32_t depth, uintptr_t running)
{
    uint32_t kept = base;
    for (uint32_t i = base; i < depth; i++)
        if (entries[i].word >= running)
            entries[kept++] = entries[i];
    return kept;
}

static uint32_t base_of(const struct life *life);

/* Entries whose frames an overflow took go, in the walk's shadow, too. The one that returns is taken off by its finder. */
static uint32_t walk_verify(struct rat_recorder *recorder, void *owner)
{
    struct walk *walk = owner;
    if (rat_recorder_above_base(recorder) == 0)
        return 0;
    struct rat_entry *entries = recorder->context->entries + 1, *top = recorder->top;
    uintptr_t running = word_at(walk->life->real);
    uint32_t depth = rat_recorder_depth(recorder) - walk->returning;
    recorder->top = entries + keep_running(entries, recorder->context->base, depth, running) - 1;
    if (walk->returning)
        *++recorder->top = *top;
    walk->life->depth = keep_running(walk->life->shadow, base_of(walk->life), walk->life->depth, running);
    walk->verified += (uint64_t)(top - recorder->top);
    return (uint32_t)(top - recorder->top);
}

static void life_push(struct life *life, uintptr_t word, uint32_t id, uint32_t kind)
{
    life->shadow[life->depth++] = (struct rat_entry){.word = word, .id = id, .kind = kind};
}

static uint32_t base_of(const struct life *life)
{
    uint32_t base = 0;
    while (base < life->depth && life->shadow[base].kind == RAT_FRAME_BASE)
        base++;
    return base;
}

/* A VM's stack has one frame for each base entry. As in the hook, the call that finds the base goes the cold way. */
static void walk_begin_life(struct walk *walk, struct life *life)
{
    bool fresh = draw(walk, 2) != 0;
    life->context = rat_context_new(fresh);
    life->depth = life->real = 0;
    assert_true(enter(walk->rig, life->context));
    walk->life = life;
    if (fresh)
        return;
    rat_recorder_begin_base(&walk->rig->recorder);
    for (uint32_t frames = (uint32_t)draw(walk, 4); frames > 0; frames--) {
        uint32_t id = 2 + (uint32_t)draw(walk, 9);
        assert_true(rat_recorder_push_base(&walk->rig->recorder, id));
        life_push(life, 0, id, RAT_FRAME_BASE);
        life->real++;
    }
    uintptr_t word = word_at(++life->real);
    rat_recorder_settle_base(&walk->rig->recorder, word);
    uint32_t id = (uint32_t)draw(walk, 2) * 5;
    rat_recorder_call(&walk->rig->recorder, RAT_EVENT_CALL, word, id, RAT_FRAME_INSTANCE, walk->rig->now);
    life_push(life, word, id, RAT_FRAME_INSTANCE);
}

static void walk_call(struct walk *walk)
{
    struct life *life = walk->life;
    if (life->real > 40)
        return;
    uint32_t id = draw(walk, 5) == 0 ? RAT_FRAME_HIDDEN : 2 + (uint32_t)draw(walk, 9);
    bool is_c = draw(walk, 4) == 0;
    uintptr_t word = word_at(++life->real);
    while (life->depth > base_of(life) && life->shadow[life->depth - 1].word <= word)
        life->depth--;
    life_push(life, word, id, is_c ? RAT_FRAME_C_INSTANCE : RAT_FRAME_INSTANCE);
    call(walk->rig, word, id, is_c);
}

/* The newest real frame above the base returns, or one further down, the ones between without an event. */
static void walk_return(struct walk *walk, uint32_t skip)
{
    struct life *life = walk->life;
    uint32_t base = base_of(life);
    if (life->real <= base + skip)
        return;
    life->real -= skip;
    uintptr_t word = word_at(life->real--);
    uint32_t at = life->depth;
    while (at > base && life->shadow[at - 1].word != word)
        at--;
    bool is_c = at > base && life->shadow[at - 1].kind == RAT_FRAME_C_INSTANCE;
    if (at > base)
        life->depth = at - 1;
    walk->returning = at > base;
    give_back(walk->rig, word, is_c);
    walk->returning = false;
}

static void walk_overflow(struct walk *walk)
{
    uint32_t base = base_of(walk->life);
    if (walk->life->real > base)
        walk->life->real -= (uint32_t)draw(walk, walk->life->real - base + 1);
}

static void walk_end_base(struct walk *walk)
{
    struct life *life = walk->life;
    if (life->depth == 0 || life->depth != base_of(life) || life->real != life->depth)
        return;
    life->depth--;
    life->real--;
    walk->returning = true;
    rat_recorder_return(&walk->rig->recorder, RAT_EVENT_RETURN, 0, walk->rig->now);
    walk->returning = false;
    rat_recorder_settle_base(&walk->rig->recorder, word_at(life->real + 1));
}

/* An entry in the middle turns out to be wrong, as rb_stack.c finds. */
static void walk_repair(struct walk *walk)
{
    struct life *life = walk->life;
    uint32_t base = base_of(life);
    if (life->depth <= base + 1)
        return;
    uint32_t out = base + (uint32_t)draw(walk, life->depth - base);
    struct rat_recorder *recorder = &walk->rig->recorder;
    struct rat_entry *entries = recorder->context->entries + 1;
    size_t above = life->depth - out - 1;
    memmove(&life->shadow[out], &life->shadow[out + 1], above * sizeof *entries);
    memmove(&entries[out], &entries[out + 1], above * sizeof *entries);
    life->depth--;
    recorder->top--;
    rat_recorder_repair(recorder, walk->rig->now);
}

static void walk_to(struct walk *walk, struct life *life)
{
    walk->life = life;
    if (life->context == NULL)
        walk_begin_life(walk, life);
    else
        assert_true(enter(walk->rig, life->context));
}

static void walk_die(struct walk *walk)
{
    struct life *dead = &walk->lives[draw(walk, CONTEXTS)];
    if (dead == walk->life || dead->context == NULL)
        return;
    rat_context_release(dead->context, &walk->rig->recorder);
    dead->context = NULL;
}

static void walk_step(struct walk *walk)
{
    uint64_t choice = draw(walk, 100);
    if (choice < 40)
        walk_call(walk);
    else if (choice < 70)
        walk_return(walk, 0);
    else if (choice < 74)
        walk_return(walk, (uint32_t)draw(walk, 3));
    else if (choice < 77)
        walk_overflow(walk);
    else if (choice < 79)
        give_back(walk->rig, 16, false); /* nobody's */
    else if (choice < 81)
        walk_end_base(walk);
    else if (choice < 82)
        walk_repair(walk);
    else if (choice < 96)
        walk_to(walk, &walk->lives[draw(walk, CONTEXTS)]);
    else if (choice < 98)
        walk_die(walk);
    else if (choice < 99)
        rat_recorder_note(&walk->rig->recorder, RAT_NOTE_DEPTH_LIMIT, 1, walk->rig->now);
    else
        walk->rig->now += RAT_EVENT_DELTA_MAX + 1;
}

/* One step; if it told all it had to tell, the reader must know the stack when it has read that far. */
static void walk_promise(struct walk *walk)
{
    const struct rat_lane_producer *lane = &walk->rig->recorder.lane;
    uint64_t stored = rat_lane_stored(lane), dropped = rig_dropped(walk->rig);
    walk_step(walk);
    uint64_t after = rat_lane_stored(lane);
    assert_shadow(walk);
    struct rat_context *context = walk->life->context;
    if (after == stored || dropped != rig_dropped(walk->rig) || context->epoch != walk->rig->recorder.epoch)
        return;
    struct promise *promise = &walk->promises[walk->made++];
    *promise = (struct promise){.events = after, .context = context->id};
    visible(walk->life, &promise->stack);
}

static void walk_drain(struct walk *walk)
{
    rig_drain(walk->rig);
    assert_int_equal(walk->kept, walk->made);
    for (size_t i = 0; i < walk->made; i++)
        free(walk->promises[i].stack.entries);
    walk->made = walk->kept = 0;
    rig_assert_accounted(walk->rig);
}

static uint64_t seed_of_the_day(void)
{
    const char *given = getenv("RAT_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : rat_clock_ns(CLOCK_REALTIME);
    print_message("RAT_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Entries that its verification took off. */
static uint64_t walk_for(uint32_t slot_bytes, uint64_t seed, int steps, uint64_t between_drains)
{
    struct rig *rig = malloc(sizeof *rig);
    rig_make(rig, slot_bytes, 48);
    struct walk *walk = calloc(1, sizeof *walk);
    walk->rig = rig;
    walk->seed = seed;
    rig->reader.decoded = keep_promises;
    rig->reader.user = walk;
    rig->recorder.verify = walk_verify;
    rig->recorder.owner = walk;
    walk_to(walk, &walk->lives[0]);
    for (int i = 0; i < steps; i++) {
        walk_promise(walk);
        if (draw(walk, between_drains) == 0 || walk->made == 8000)
            walk_drain(walk);
    }
    walk_drain(walk);
    assert_true(walk->checks > 0);
    rat_recorder_end_all(&rig->recorder, RAT_END_STOP, rig->now);
    rig_drain(rig);
    for (int i = 0; i < CONTEXTS; i++)
        if (walk->lives[i].context != NULL)
            rig->contexts[rig->context_count++] = walk->lives[i].context;
    uint64_t verified = walk->verified;
    free(walk);
    DONE(rig);
    return verified;
}

static void test_the_stream_is_the_shadow_on_a_random_walk(void **state)
{
    (void)state;
    uint64_t seed = seed_of_the_day(), verified = 0;
    for (uint64_t round = 0; round < 40; round++)
        verified += walk_for(BIG_SLOT, seed + round, 5000, 200);
    assert_true(verified > 0);
}

static void test_the_stream_is_the_shadow_where_most_events_drop(void **state)
{
    (void)state;
    uint64_t seed = seed_of_the_day(), verified = 0;
    for (uint64_t round = 0; round < 40; round++)
        verified += walk_for(512 + (uint32_t)(round % 4) * 128, seed + round, 5000, 300);
    assert_true(verified > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_and_its_return_are_told_after_one_snapshot),
        cmocka_unit_test(test_entries_whose_frames_vanished_are_unwound_by_the_next_call),
        cmocka_unit_test(test_a_return_that_matches_deeper_unwinds_what_lies_above),
        cmocka_unit_test(test_a_return_that_matches_nothing_pops_nothing),
        cmocka_unit_test(test_the_newest_entry_of_an_id_is_found),
        cmocka_unit_test(test_a_shadow_grows_to_100000_entries_and_back),
        cmocka_unit_test(test_hidden_frames_are_kept_and_never_told),
        cmocka_unit_test(test_unwinding_only_hidden_frames_tells_nothing),
        cmocka_unit_test(test_a_context_that_comes_with_a_hidden_frame_is_told_before_its_first_event),
        cmocka_unit_test(test_a_context_that_comes_with_a_hidden_return_is_told_before_its_first_event),
        cmocka_unit_test(test_base_frames_are_told_with_the_first_event),
        cmocka_unit_test(test_a_base_taken_in_an_open_interval_is_told),
        cmocka_unit_test(test_a_settled_base_needs_no_count_for_later_events_above_it),
        cmocka_unit_test(test_base_frames_are_neither_stale_nor_found),
        cmocka_unit_test(test_unwinding_into_the_base_shortens_it),
        cmocka_unit_test(test_a_context_is_told_anew_after_a_restart),
        cmocka_unit_test(test_every_interval_begins_with_the_whole_stack),
        cmocka_unit_test(test_a_new_interval_verifies_the_shadow_and_says_so_when_it_was_wrong),
        cmocka_unit_test(test_no_shadow_is_verified_while_frames_of_it_are_taken_off),
        cmocka_unit_test(test_more_is_never_taken_off_than_there_is),
        cmocka_unit_test(test_no_shadow_is_verified_against_another_fibers_stack),
        cmocka_unit_test(test_after_the_first_loss_an_interval_takes_nothing_more),
        cmocka_unit_test(test_a_stack_too_deep_for_its_slot_is_counted_and_comes_back),
        cmocka_unit_test(test_a_stack_too_deep_for_its_slot_is_not_verified_for_each_event),
        cmocka_unit_test(test_hidden_frames_make_no_stack_too_deep_for_its_slot),
        cmocka_unit_test(test_a_pause_longer_than_a_delta_goes_into_a_gap),
        cmocka_unit_test(test_each_context_has_a_stack_of_its_own),
        cmocka_unit_test(test_a_dead_context_ends_at_the_next_burial_and_no_earlier),
        cmocka_unit_test(test_the_current_context_may_die),
        cmocka_unit_test(test_an_id_is_used_again_only_after_its_end_is_written),
        cmocka_unit_test(test_ids_of_many_dead_contexts_are_used_again_oldest_first),
        cmocka_unit_test(test_a_context_released_without_a_recorder_is_freed_at_once),
        cmocka_unit_test(test_a_context_that_was_never_told_is_buried_without_a_word),
        cmocka_unit_test(test_the_end_ends_every_context_with_open_frames),
        cmocka_unit_test(test_a_forgotten_context_begins_with_a_base),
        cmocka_unit_test(test_of_chosen_methods_only_nothing_is_below_a_forgotten_context),
        cmocka_unit_test(test_a_note_is_told_with_its_value),
        cmocka_unit_test(test_without_a_lane_nothing_is_told_and_nothing_breaks),
        cmocka_unit_test(test_the_stream_is_the_shadow_on_a_random_walk),
        cmocka_unit_test(test_the_stream_is_the_shadow_where_most_events_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
