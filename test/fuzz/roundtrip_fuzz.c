/* roundtrip_fuzz.c - valid slot words, encoded and decoded again, say the same. The input picks kinds, gaps and ids;
 * the columns expected are made beside the words, by the plainest code. */
#include "fuzz.h"

#define EVENTS_MAX 1024u
#define FRAMES 300u
#define CONTEXTS 5u

static struct rat_name_entry names[2] = {{0, 0, 0, 0}, {0, 4, 1, 0}};
static struct rat_frame_entry frames[FRAMES + 1];
static struct rat_context_entry contexts[CONTEXTS + 1];

struct expected {
    uint64_t gap[EVENTS_MAX], rich[EVENTS_MAX * 8];
    uint8_t kind[EVENTS_MAX];
    uint32_t id[EVENTS_MAX], rich_words[EVENTS_MAX];
    uint32_t events, ids, riches, rich_total;
};

struct input {
    const uint8_t *data;
    size_t size;
};

static uint64_t take(struct input *input, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && input->size > 0; i++, input->size--)
        value |= (uint64_t)*input->data++ << 8 * i;
    return value;
}

static uint32_t least_words(uint8_t kind)
{
    switch (kind) {
    case RAT_EVENT_SNAPSHOT:
        return 2;
    case RAT_EVENT_GATE:
        return RAT_GATE_WORDS;
    case RAT_EVENT_COST:
        return RAT_COST_WORDS;
    default:
        return 1;
    }
}

static uint32_t make_payload(struct input *input, uint8_t kind, uint64_t *payload)
{
    uint32_t words = least_words(kind) + (uint32_t)take(input, 1) % (kind == RAT_EVENT_SNAPSHOT ? 5 : 3);
    for (uint32_t i = 0; i < words; i++)
        payload[i] = take(input, 8);
    if (kind == RAT_EVENT_SNAPSHOT) {
        uint32_t depth = (uint32_t)payload[0] % ((words - 2) * 2 + 1);
        payload[0] = (payload[0] >> 32) % (CONTEXTS + 1) << 32 | depth;
        for (uint32_t i = 0; i < depth; i++) { /* frames that exist */
            unsigned shift = i % 2 ? 32 : 0;
            uint64_t entry = payload[2 + i / 2] >> shift & UINT32_MAX;
            payload[2 + i / 2] &= ~((uint64_t)UINT32_MAX << shift);
            payload[2 + i / 2] |= ((entry >> 8) % (FRAMES + 1) << 8 | (entry & 0xFF)) << shift;
        }
    } else if (kind == RAT_EVENT_END) {
        payload[0] = (payload[0] >> 32) % (CONTEXTS + 1) << 32 | (uint32_t)payload[0];
    } else if (kind == RAT_EVENT_GATE) {
        payload[0] = payload[0] >> 32 << 32 | (uint32_t)payload[0] % (FRAMES + 1);
    }
    return words;
}

static uint32_t make_words(struct input *input, uint64_t *words, struct expected *expected)
{
    static const uint8_t kinds[16] = {
        RAT_EVENT_CALL,   RAT_EVENT_RETURN,    RAT_EVENT_CALL,   RAT_EVENT_RETURN, RAT_EVENT_C_CALL, RAT_EVENT_C_RETURN,
        RAT_EVENT_UNWIND, RAT_EVENT_UNMATCHED, RAT_EVENT_SWITCH, 8,                RAT_EVENT_COST,   RAT_EVENT_SNAPSHOT,
        RAT_EVENT_END,    RAT_EVENT_NOTE,      RAT_EVENT_GATE,   63,
    };
    uint32_t count = 0;
    while (input->size > 0 && expected->events < EVENTS_MAX) {
        uint8_t choice = (uint8_t)take(input, 1);
        uint8_t kind = kinds[choice & 15];
        uint64_t delta = take(input, choice >> 4 & 3 ? choice >> 4 & 3 : 5) & RAT_EVENT_DELTA_MAX, gap = delta;
        if (choice & 0x80) { /* 2^48 each cannot overflow */
            uint64_t more = take(input, 6);
            words[count++] = rat_event_word(RAT_EVENT_GAP, 1);
            words[count++] = more;
            gap += more;
        }
        uint64_t payload[8];
        uint32_t id = 0, length = 0;
        if (rat_kind_is_rich(kind)) {
            id = length = make_payload(input, kind, payload);
            expected->rich_words[expected->riches++] = length;
            memcpy(expected->rich + expected->rich_total, payload, length * sizeof *payload);
            expected->rich_total += length;
        } else if (kind != RAT_EVENT_RETURN && kind != RAT_EVENT_C_RETURN && kind != RAT_EVENT_UNMATCHED) {
            id = (uint32_t)take(input, choice & 0x40 ? 3 : 1);
            if (kind == RAT_EVENT_CALL || kind == RAT_EVENT_C_CALL)
                id %= FRAMES + 1;
            else if (kind == RAT_EVENT_SWITCH)
                id %= CONTEXTS + 1;
            expected->id[expected->ids++] = id;
        }
        words[count++] = rat_event_word((enum rat_event_kind)kind, id) | delta << RAT_EVENT_DELTA_SHIFT;
        memcpy(words + count, payload, length * sizeof *payload);
        count += length;
        expected->gap[expected->events] = gap;
        expected->kind[expected->events++] = kind;
    }
    return count;
}

static bool has_frame(const struct rat_body *body, uint32_t id)
{
    for (size_t i = 0; i < body->frame_count; i++)
        if (body->frames[i].id == id)
            return true;
    return id == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct rat_encoder *encoder;
    static struct rat_decoder *decoder;
    static struct rat_live_head session;
    if (encoder == NULL) {
        MUST(rat_encoder_new(EVENTS_MAX * 11, 1, &encoder) == RAT_OK);
        MUST(rat_decoder_new(0, &decoder) == RAT_OK);
        memcpy(session.sync, RAT_SYNC_CONSTANT "fuzzfuzz", 16);
        for (uint32_t i = 1; i <= FRAMES; i++)
            frames[i] = (struct rat_frame_entry){.method = 1, .line = i, .kind = RAT_FRAME_INSTANCE};
        for (uint32_t i = 1; i <= CONTEXTS; i++)
            contexts[i] = (struct rat_context_entry){.kind = RAT_CONTEXT_FIBER, .parent = i - 1, .lane = 1};
    }
    const struct rat_dict_view view = {
        .frames = frames,
        .names = names,
        .contexts = contexts,
        .text = (const uint8_t *)"name",
        .frame_count = FRAMES,
        .name_count = 1,
        .context_count = CONTEXTS,
        .text_used = 4,
    };
    struct input input = {data, size};
    struct expected *expected = calloc(1, sizeof *expected);
    uint64_t *words = malloc(EVENTS_MAX * 11 * sizeof *words);
    MUST(expected != NULL && words != NULL);
    uint64_t base_ticks = take(&input, 6);
    uint32_t count = make_words(&input, words, expected);
    uint64_t *exact = malloc(count > 0 ? count * sizeof *exact : 1);
    MUST(exact != NULL);
    memcpy(exact, words, count * sizeof *exact);

    struct rat_buffer out;
    rat_buffer_init(&out, 1 << 26);
    const struct rat_chunk_info info = {.session = &session, .segment = 1, .lane = 1, .sequence = 1};
    rat_encoder_begin_segment(encoder);
    MUST(rat_encoder_lane_chunk(encoder, &info, exact, count, expected->events, base_ticks, &view, &out) == RAT_OK);
    rat_encoder_settle(encoder, true);

    struct rat_segment_reader *reader;
    struct rat_read read;
    const struct rat_body *body;
    MUST(rat_segment_open_bytes(out.bytes, out.length, &reader) == RAT_OK);
    rat_segment_next(reader, &read);
    MUST(read.kind == RAT_READ_CHUNK && read.length == out.length);
    MUST(rat_decode_body(decoder, &read.header, &body) == RAT_OK);
    MUST(body->base_ticks == base_ticks);
    MUST(body->events == expected->events && body->ids == expected->ids && body->riches == expected->riches);
    MUST(body->rich_total == expected->rich_total);
    for (uint32_t i = 0; i < expected->events; i++)
        MUST(body->gap[i] == expected->gap[i] && body->kind[i] == expected->kind[i]);
    for (uint32_t i = 0; i < expected->ids; i++)
        MUST(body->id[i] == expected->id[i]);
    for (uint32_t i = 0; i < expected->riches; i++)
        MUST(body->rich_words[i] == expected->rich_words[i]);
    for (uint32_t i = 0; i < expected->rich_total; i++)
        MUST(body->rich[i] == expected->rich[i]);
    for (uint32_t i = 0, rich = 0, at = 0; i < expected->events; i++) {
        if (!rat_kind_is_rich(expected->kind[i]))
            continue;
        if (expected->kind[i] == RAT_EVENT_GATE)
            MUST(has_frame(body, (uint32_t)expected->rich[at]));
        at += expected->rich_words[rich++];
    }
    for (uint32_t i = 0, ids = 0; i < expected->events; i++) {
        if (!rat_kind_has_id(expected->kind[i]))
            continue;
        if (expected->kind[i] == RAT_EVENT_CALL || expected->kind[i] == RAT_EVENT_C_CALL)
            MUST(has_frame(body, expected->id[ids]));
        ids++;
    }
    rat_segment_reader_free(reader);
    rat_buffer_free(&out);
    free(exact);
    free(words);
    free(expected);
    return 0;
}
