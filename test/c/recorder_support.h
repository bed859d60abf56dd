/* recorder_support.h - what the tests of record/recorder.h share: a lane and a dictionary in plain memory, slots
 * drained on demand and decoded by the few lines below, which know event.h and nothing else. */
#ifndef RAT_TEST_RECORDER_SUPPORT_H
#define RAT_TEST_RECORDER_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "record/recorder.h"

#define UNUSED __attribute__((unused))
#define FRAME_BYTES 64
#define STACK_TOP UINT64_C(0x7f0000000000) /* word of a fiber's first frame */
#define BIG_SLOT (1u << 20)
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

UNUSED static bool stacks_equal(const struct stack *a, const struct stack *b)
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

UNUSED static void rig_make(struct rig *rig, uint32_t slot_bytes, uint32_t contexts)
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
UNUSED static const char *rig_drain(struct rig *rig)
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

UNUSED static void rig_free(struct rig *rig)
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

UNUSED static bool enter(struct rig *rig, struct rat_context *context)
{
    struct rat_context_entry entry = {.kind = RAT_CONTEXT_FIBER, .lane = 1, .seen_ticks = rig->now};
    rig->now++;
    rat_recorder_bury(&rig->recorder, rig->now);
    if (!rat_recorder_switch(&rig->recorder, context, &entry, rig->now))
        return false;
    rig->recorder.ec = (uintptr_t)context;
    return true;
}

UNUSED static struct rat_context *new_context(struct rig *rig, bool fresh)
{
    struct rat_context *context = rat_context_new(fresh);
    assert_non_null(context);
    rig->contexts[rig->context_count++] = context;
    return context;
}

UNUSED static void bury(struct rig *rig, struct rat_context *context)
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

UNUSED static void call_at(struct rig *rig, uint32_t depth, uint32_t id)
{
    call(rig, word_at(depth), id, false);
}

UNUSED static void return_at(struct rig *rig, uint32_t depth)
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

UNUSED static void watch_verify(struct rig *rig)
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

#endif
