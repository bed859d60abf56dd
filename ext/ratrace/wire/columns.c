#include "wire/columns.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#define GAP_BYTES 5u /* a delta of 34 bits; a longer one takes 10 bytes but has used 3 words */
#define ID_BYTES 4u  /* 24 bits */
#define SLACK 16u    /* stores are 8 bytes wide and may reach over the end */

enum rat_status rat_columns_new(struct rat_columns *columns, uint32_t capacity)
{
    size_t words = capacity;
    *columns = (struct rat_columns){
        .capacity = capacity,
        .gap = malloc(words * GAP_BYTES + SLACK),
        .kind = malloc(words + SLACK),
        .id = malloc(words * ID_BYTES + SLACK),
        .rich_words = malloc(words * ID_BYTES + SLACK),
        .rich = malloc(words * sizeof(uint64_t) + SLACK),
    };
    if (columns->gap != NULL && columns->kind != NULL && columns->id != NULL && columns->rich_words != NULL &&
        columns->rich != NULL)
        return RAT_OK;
    rat_columns_free(columns);
    return RAT_NO_MEMORY;
}

void rat_columns_free(struct rat_columns *columns)
{
    free(columns->gap);
    free(columns->kind);
    free(columns->id);
    free(columns->rich_words);
    free(columns->rich);
    *columns = (struct rat_columns){.capacity = 0};
}

/* A varint of at most 35 bits without a branch (lengths are hard to predict): always stores 8 bytes, returns how many
 * count. */
static inline unsigned put_short_varint(uint8_t *at, uint64_t value)
{
    unsigned top = 63u - (unsigned)__builtin_clzll(value | 1);
    unsigned more = top * 37 >> 8; /* top / 7 for 0..34 */
    uint64_t spread = (value & 0x7F) | (value & 0x3F80) << 1 | (value & 0x1FC000) << 2 | (value & 0xFE00000) << 3 |
                      (value & UINT64_C(0x7F0000000)) << 4;
    spread |= UINT64_C(0x80808080) & ((UINT64_C(1) << 8 * more) - 1);
    spread = htole64(spread);
    memcpy(at, &spread, sizeof spread);
    return more + 1;
}

static unsigned put_varint(uint8_t *at, uint64_t value)
{
    unsigned length = 0;
    for (; value > 0x7F; value >>= 7)
        at[length++] = (uint8_t)(value | 0x80);
    at[length++] = (uint8_t)value;
    return length;
}

/* What the loop must do for a kind: how many bits of the id count as a frame, and whether an id is written at all. */
struct plan {
    uint32_t frame; /* mask for the frame check; 0 checks frame 0, which always holds */
    uint8_t keep;   /* mask for the id's length in bytes */
    uint8_t slow;
};

#define PLAIN_NO_ID {0, 0, 0}
#define PLAIN_FRAME {RAT_EVENT_ID_MAX, 0xFF, 0}
#define PLAIN_ID {0, 0xFF, 0}
static const struct plan plans[RAT_EVENT_RICH + 1] = {
    [0] = {0, 0, 1},
    [RAT_EVENT_CALL] = PLAIN_FRAME,
    [RAT_EVENT_RETURN] = PLAIN_NO_ID,
    [RAT_EVENT_C_CALL] = PLAIN_FRAME,
    [RAT_EVENT_C_RETURN] = PLAIN_NO_ID,
    [RAT_EVENT_UNWIND] = PLAIN_ID,
    [RAT_EVENT_UNMATCHED] = PLAIN_NO_ID,
    [RAT_EVENT_SWITCH] = {0, 0xFF, 1},
    [8 ... RAT_EVENT_GAP - 1] = PLAIN_ID, /* kinds of a later version */
    [RAT_EVENT_GAP] = {0, 0, 1},
};

/* Where the next byte of each column goes, and time so far. */
struct cursor {
    uint8_t *gap, *kind, *id, *rich_words, *rich;
    uint64_t ticks;
};

static enum rat_status use_snapshot(struct rat_sent *sent, const uint64_t *payload)
{
    enum rat_status status = rat_sent_use_context(sent, (uint32_t)(payload[0] >> 32));
    uint32_t depth = (uint32_t)payload[0];
    for (uint32_t i = 0; i < depth && status == RAT_OK; i++) {
        uint32_t entry = (uint32_t)(payload[2 + i / 2] >> (i % 2 ? 32 : 0));
        status = rat_sent_use_frame(sent, entry >> 8);
    }
    return status;
}

/* One event that is not a plain call or return, with its prefix and payload; `*used` words of the `left`. */
static enum rat_status pack_slow(struct cursor *to, const uint64_t *words, uint32_t left, uint32_t *used,
                                 struct rat_sent *sent)
{
    uint64_t gap = 0;
    uint32_t at = 0;
    if (rat_event_kind(words[0]) == RAT_EVENT_GAP) {
        if (rat_event_id(words[0]) != 1 || left < 3 ||
            __builtin_add_overflow(words[1], rat_event_delta(words[0]), &gap))
            return RAT_CORRUPT;
        at = 2;
    }
    uint64_t word = words[at++];
    uint8_t kind = (uint8_t)rat_event_kind(word);
    uint32_t id = rat_event_id(word);
    if (rat_kind_is_wrong(kind) || __builtin_add_overflow(gap, rat_event_delta(word), &gap) ||
        __builtin_add_overflow(to->ticks, gap, &to->ticks))
        return RAT_CORRUPT;
    to->gap += put_varint(to->gap, gap);
    *to->kind++ = kind;
    enum rat_status status = RAT_OK;
    if (rat_kind_is_rich(kind)) {
        if (id > left - at || !rat_payload_fits(kind, words + at, id))
            return RAT_CORRUPT;
        if (kind == RAT_EVENT_SNAPSHOT)
            status = use_snapshot(sent, words + at);
        else if (kind == RAT_EVENT_END)
            status = rat_sent_use_context(sent, (uint32_t)(words[at] >> 32));
        else if (kind == RAT_EVENT_GATE)
            status = rat_sent_use_frame(sent, (uint32_t)words[at]);
        to->rich_words += put_varint(to->rich_words, id);
        for (uint32_t i = 0; i < id; i++, to->rich += sizeof(uint64_t)) {
            uint64_t little = htole64(words[at + i]);
            memcpy(to->rich, &little, sizeof little);
        }
        at += id;
    } else if (rat_kind_has_id(kind)) {
        if (kind == RAT_EVENT_SWITCH)
            status = rat_sent_use_context(sent, id);
        else if (kind == RAT_EVENT_CALL || kind == RAT_EVENT_C_CALL)
            status = rat_sent_use_frame(sent, id);
        to->id += put_varint(to->id, id);
    }
    *used = at;
    return status;
}

enum rat_status rat_columns_pack(struct rat_columns *columns, const uint64_t *words, uint32_t count,
                                 uint64_t base_ticks, struct rat_sent *sent)
{
    if (count > columns->capacity)
        return RAT_CORRUPT;
    struct cursor slow = {columns->gap, columns->kind, columns->id, columns->rich_words, columns->rich, base_ticks};
    /* Locals, whose address nobody takes: a byte store may change anything else, and would have it loaded again. */
    uint8_t *gap = slow.gap, *kinds = slow.kind, *ids = slow.id;
    uint64_t ticks = base_ticks;
    const uint8_t *const frames_sent = sent->frames;
    const uint32_t frame_count = sent->view.frame_count;
    for (uint32_t at = 0; at < count;) {
        uint64_t word = words[at];
        uint8_t kind = (uint8_t)rat_event_kind(word);
        if (__builtin_expect(kind > RAT_EVENT_RICH || plans[kind].slow, 0)) {
            uint32_t used;
            slow.gap = gap, slow.kind = kinds, slow.id = ids, slow.ticks = ticks;
            enum rat_status status = pack_slow(&slow, words + at, count - at, &used, sent);
            if (status != RAT_OK)
                return status;
            gap = slow.gap, kinds = slow.kind, ids = slow.id, ticks = slow.ticks;
            at += used;
            continue;
        }
        uint64_t delta = rat_event_delta(word);
        uint32_t id = rat_event_id(word);
        uint32_t frame = id & plans[kind].frame;
        if (__builtin_expect(frame > frame_count || !frames_sent[frame], 0)) {
            enum rat_status status = rat_sent_use_frame(sent, frame);
            if (status != RAT_OK)
                return status;
        }
        unsigned keep = plans[kind].keep;
        gap += put_short_varint(gap, delta);
        *kinds++ = kind;
        ids += put_short_varint(ids, id) & keep;
        ticks += delta;
        at++;
        if (__builtin_expect(ticks < delta, 0))
            return RAT_CORRUPT;
    }
    columns->events = (uint32_t)(kinds - columns->kind);
    columns->gap_bytes = (size_t)(gap - columns->gap);
    columns->id_bytes = (size_t)(ids - columns->id);
    columns->rich_words_bytes = (size_t)(slow.rich_words - columns->rich_words);
    columns->rich_bytes = (size_t)(slow.rich - columns->rich);
    return RAT_OK;
}
