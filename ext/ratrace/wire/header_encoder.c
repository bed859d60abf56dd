#include "wire/header_encoder.h"

#include <endian.h>
#include <string.h>

#include "base/check.h"
#include "wire/trace.pb-c.h"

struct totals_message {
    Ratrace__V1__Totals totals;
    Ratrace__V1__Drop drops[RAT_DROP_CAUSES];
    Ratrace__V1__Drop *pointers[RAT_DROP_CAUSES];
};

static Ratrace__V1__Totals *fill_totals(struct totals_message *message, const struct rat_totals *from)
{
    ratrace__v1__totals__init(&message->totals);
    message->totals.stored = from->stored;
    message->totals.drop = message->pointers;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++) {
        if (from->drop[cause] == 0)
            continue;
        Ratrace__V1__Drop *drop = &message->drops[message->totals.n_drop];
        ratrace__v1__drop__init(drop);
        drop->cause = (Ratrace__V1__Cause)cause;
        drop->count = from->drop[cause];
        message->pointers[message->totals.n_drop++] = drop;
    }
    return &message->totals;
}

static Ratrace__V1__Anchor *fill_anchor(Ratrace__V1__Anchor *anchor, const struct rat_anchor *from)
{
    ratrace__v1__anchor__init(anchor);
    anchor->ticks = from->ticks;
    anchor->monotonic_ns = from->monotonic_ns;
    anchor->realtime_ns = from->realtime_ns;
    anchor->width_ticks = from->width_ticks;
    return anchor;
}

struct losts_message {
    Ratrace__V1__Lost losts[RAT_CHUNK_LOSTS_MAX];
    Ratrace__V1__Lost *pointers[RAT_CHUNK_LOSTS_MAX];
};

static void fill_losts(Ratrace__V1__Chunk *chunk, struct losts_message *message, const struct rat_chunk_info *info)
{
    chunk->lost = message->pointers;
    for (; chunk->n_lost < info->lost_count && chunk->n_lost < RAT_CHUNK_LOSTS_MAX; chunk->n_lost++) {
        const struct rat_lost_label *from = &info->lost[chunk->n_lost];
        Ratrace__V1__Lost *lost = &message->losts[chunk->n_lost];
        ratrace__v1__lost__init(lost);
        lost->cause = (Ratrace__V1__Cause)from->cause;
        lost->first_seq = from->first_seq;
        lost->last_seq = from->last_seq;
        lost->count = from->count;
        lost->from_ticks = from->from_ticks;
        lost->to_ticks = from->to_ticks;
        message->pointers[chunk->n_lost] = lost;
    }
}

struct marks_message {
    Ratrace__V1__Mark marks[RAT_LANES];
    Ratrace__V1__Mark *pointers[RAT_LANES];
    struct totals_message closed[RAT_LANES];
};

static void fill_marks(Ratrace__V1__Chunk *chunk, struct marks_message *message, const struct rat_chunk_info *info)
{
    chunk->mark = message->pointers;
    for (; chunk->n_mark < info->mark_count && chunk->n_mark < RAT_LANES; chunk->n_mark++) {
        const struct rat_lane_mark *from = &info->marks[chunk->n_mark];
        Ratrace__V1__Mark *mark = &message->marks[chunk->n_mark];
        ratrace__v1__mark__init(mark);
        mark->lane = from->lane;
        mark->sequence = from->sequence;
        mark->closed = fill_totals(&message->closed[chunk->n_mark], &from->closed);
        message->pointers[chunk->n_mark] = mark;
    }
}

/* Bytes of the UTF-8 character at `at` (RFC 3629), 0 if it is none. */
static size_t utf8_length(const uint8_t *at, size_t left)
{
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xC2 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : at[0] < 0xF5 ? 4 : 0;
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F) || (at[0] == 0xF0 && at[1] < 0x90) ||
        (at[0] == 0xF4 && at[1] > 0x8F))
        return 0;
    return length;
}

/* A string field must be UTF-8, or other libraries refuse the whole chunk: what is not becomes '?'. */
static char *utf8_copy(char *to, const char *from, size_t room)
{
    size_t length = strnlen(from, room - 1);
    for (size_t i = 0; i < length;) {
        size_t character = utf8_length((const uint8_t *)from + i, length - i);
        if (character == 0)
            to[i++] = '?';
        for (size_t end = i + character; character != 0 && i < end; i++)
            to[i] = from[i];
    }
    to[length] = '\0';
    return to;
}

struct tags_message {
    Ratrace__V1__Tag tags[RAT_TAGS_MAX];
    Ratrace__V1__Tag *pointers[RAT_TAGS_MAX];
    char bytes[RAT_TAGS_BYTES];
};

static void fill_tags(Ratrace__V1__Session *session, struct tags_message *message, const char from[RAT_TAGS_BYTES])
{
    session->tag = message->pointers;
    const char *name, *text;
    for (size_t at = 0; session->n_tag < RAT_TAGS_MAX && rat_tags_next(from, &at, &name, &text);) {
        Ratrace__V1__Tag *tag = &message->tags[session->n_tag];
        ratrace__v1__tag__init(tag);
        tag->name = utf8_copy(message->bytes + (name - from), name, strlen(name) + 1);
        tag->text = utf8_copy(message->bytes + (text - from), text, strlen(text) + 1);
        message->pointers[session->n_tag++] = tag;
    }
}

struct session_message {
    Ratrace__V1__Session session;
    struct tags_message tags;
    char service[64], host[64], ruby[32], recorder[32], trace[256];
    uint8_t boot_id[16], parent[16];
};

static Ratrace__V1__Session *fill_session(struct session_message *message, const struct rat_live_head *from)
{
    static const uint8_t zero[16];
    Ratrace__V1__Session *session = &message->session;
    ratrace__v1__session__init(session);
    session->service = utf8_copy(message->service, from->service, sizeof message->service);
    session->host = utf8_copy(message->host, from->host, sizeof message->host);
    session->ruby = utf8_copy(message->ruby, from->ruby, sizeof message->ruby);
    session->recorder = utf8_copy(message->recorder, from->recorder, sizeof message->recorder);
    session->trace = utf8_copy(message->trace, from->trace, sizeof message->trace);
    fill_tags(session, &message->tags, from->tags);
    session->pid = from->pid;
    session->parent_pid = from->parent_pid;
    session->start_ns = from->start.realtime_ns;
    if (memcmp(from->boot_id, zero, sizeof zero) != 0) {
        memcpy(message->boot_id, from->boot_id, sizeof message->boot_id);
        session->boot_id = (ProtobufCBinaryData){sizeof message->boot_id, message->boot_id};
    }
    if (from->parent_hi != 0 || from->parent_lo != 0) {
        uint64_t big[2] = {htobe64(from->parent_hi), htobe64(from->parent_lo)};
        memcpy(message->parent, big, sizeof big);
        session->parent_session = (ProtobufCBinaryData){sizeof message->parent, message->parent};
    }
    session->clock = (Ratrace__V1__ClockKind)from->clock;
    session->ticks_per_s = from->ticks_per_s;
    session->fence = (Ratrace__V1__FenceKind)from->fence;
    session->slot_bytes = from->slot_bytes;
    session->frame_path =
        (Ratrace__V1__FramePath)atomic_load_explicit(&from->frame_path, memory_order_relaxed); /* shown, not relied on */
    return session;
}

enum rat_status rat_encode_header(const struct rat_chunk_info *info, const struct rat_chunk_body *body,
                                  uint8_t to[RAT_CHUNK_HEADER_MAX], size_t *length)
{
    struct totals_message opened, closed;
    Ratrace__V1__Anchor start, end;
    struct losts_message losts;
    struct marks_message marks;
    struct session_message session;
    uint8_t sync[16];
    memcpy(sync, info->session->sync, sizeof sync);
    Ratrace__V1__Chunk chunk = RATRACE__V1__CHUNK__INIT;
    chunk.sync = (ProtobufCBinaryData){sizeof sync, sync};
    chunk.session_hi = info->session->session_hi;
    chunk.session_lo = info->session->session_lo;
    chunk.segment = info->segment;
    chunk.lane = info->lane;
    chunk.sequence = info->sequence;
    chunk.reason = (Ratrace__V1__Reason)info->reason;
    chunk.opened = fill_totals(&opened, &info->opened);
    chunk.closed = fill_totals(&closed, &info->closed);
    chunk.events = body->events;
    chunk.in_flight = info->in_flight;
    chunk.start = fill_anchor(&start, &info->start);
    chunk.end = fill_anchor(&end, &info->end);
    fill_losts(&chunk, &losts, info);
    fill_marks(&chunk, &marks, info);
    chunk.codec = (Ratrace__V1__Codec)body->codec;
    chunk.raw_bytes = (uint32_t)body->raw_length;
    chunk.body_bytes = (uint32_t)body->length;
    chunk.body_check = rat_check_xxh3(body->bytes, body->length);
    chunk.info = info->with_session ? fill_session(&session, info->session) : NULL;
    chunk.size = 1; /* any but 0, which would be left out: a fixed32 always takes as much */

    uint8_t tail[2 + 4 + 2 + 10] = {0xF5, 0x01, 0, 0, 0, 0, 0xFA, 0x01}; /* header_check = 30, body = 31 */
    size_t tail_bytes = 8;
    for (size_t left = body->length;; left >>= 7) {
        tail[tail_bytes++] = (uint8_t)((left & 0x7F) | (left > 0x7F ? 0x80 : 0));
        if (left <= 0x7F)
            break;
    }
    size_t packed = ratrace__v1__chunk__get_packed_size(&chunk);
    if (packed + tail_bytes > RAT_CHUNK_HEADER_MAX)
        return RAT_TOO_BIG;
    chunk.size = (uint32_t)(packed + tail_bytes + body->length);
    ratrace__v1__chunk__pack(&chunk, to);
    uint32_t check = htole32(rat_check_crc32c(to, packed));
    memcpy(tail + 2, &check, sizeof check);
    memcpy(to + packed, tail, tail_bytes);
    *length = packed + tail_bytes;
    return RAT_OK;
}
