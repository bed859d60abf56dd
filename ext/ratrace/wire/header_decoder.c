#include "wire/decoder.h"

#include <endian.h>
#include <string.h>

#include "base/check.h"
#include "wire/budget.h"
#include "wire/trace.pb-c.h"

#define HEADER_MEMORY (UINT32_C(1) << 20) /* to unpack one header */

#define FIELD_CHECK 30
#define FIELD_BODY 31
#define WIRE_VARINT 0
#define WIRE_FIXED64 1
#define WIRE_BYTES 2
#define WIRE_FIXED32 5

static bool take_varint(const uint8_t *bytes, size_t length, size_t *at, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 10 && *at < length; i++) {
        uint8_t byte = bytes[(*at)++];
        if (i == 9 && byte > 1)
            return false; /* beyond 64 bits */
        value |= (uint64_t)(byte & 0x7F) << 7 * i;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* Step over the content of one field. */
static bool skip_field(const uint8_t *bytes, size_t length, size_t *at, unsigned wire)
{
    uint64_t size = 0;
    switch (wire) {
    case WIRE_VARINT:
        return take_varint(bytes, length, at, &size);
    case WIRE_FIXED64:
        size = 8;
        break;
    case WIRE_FIXED32:
        size = 4;
        break;
    case WIRE_BYTES:
        if (!take_varint(bytes, length, at, &size))
            return false;
        break;
    default:
        return false; /* groups are not proto3 */
    }
    if (size > length - *at)
        return false;
    *at += size;
    return true;
}

/* Find where the checked part of the header ends and where the body lies. Order on the wire: everything checked,
 * header_check, body, then at most fields of a later version. */
static bool find_parts(const uint8_t *bytes, size_t length, size_t *checked, uint32_t *check, size_t *body,
                       size_t *body_bytes)
{
    size_t at = 0;
    uint64_t tag;
    for (;;) {
        size_t start = at;
        if (at > RAT_CHUNK_HEADER_MAX || !take_varint(bytes, length, &at, &tag))
            return false;
        uint64_t number = tag >> 3;
        if (number == 0 || number > FIELD_CHECK)
            return false;
        if (number == FIELD_CHECK) {
            if ((tag & 7) != WIRE_FIXED32 || length - at < 4 || start > RAT_CHUNK_HEADER_MAX)
                return false;
            memcpy(check, bytes + at, 4);
            *check = le32toh(*check);
            *checked = start;
            at += 4;
            break;
        }
        if (!skip_field(bytes, length, &at, tag & 7))
            return false;
    }
    *body = length;
    *body_bytes = 0;
    while (at < length) {
        if (!take_varint(bytes, length, &at, &tag) || tag >> 3 <= FIELD_CHECK)
            return false;
        if (tag >> 3 != FIELD_BODY) {
            if (!skip_field(bytes, length, &at, tag & 7))
                return false;
            continue;
        }
        uint64_t size;
        if ((tag & 7) != WIRE_BYTES || *body != length || !take_varint(bytes, length, &at, &size) || size > length - at)
            return false;
        *body = at;
        *body_bytes = size;
        at += size;
    }
    return true;
}

static void read_totals(struct rat_totals *to, const Ratrace__V1__Totals *from)
{
    if (from == NULL)
        return;
    to->stored = from->stored;
    for (size_t i = 0; i < from->n_drop; i++) {
        uint32_t cause = (uint32_t)from->drop[i]->cause;
        to->drop[cause < RAT_DROP_CAUSES ? cause : 0] += from->drop[i]->count;
    }
}

static void read_anchor(struct rat_anchor *to, const Ratrace__V1__Anchor *from)
{
    if (from == NULL)
        return;
    to->ticks = from->ticks;
    to->monotonic_ns = from->monotonic_ns;
    to->realtime_ns = from->realtime_ns;
    to->width_ticks = from->width_ticks;
}

static void read_text(char *to, size_t room, const char *from)
{
    size_t length = strnlen(from, room - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

static void read_tags(char to[RAT_TAGS_BYTES], const Ratrace__V1__Session *from)
{
    size_t used = 0;
    for (size_t i = 0; i < from->n_tag; i++) {
        size_t name = strlen(from->tag[i]->name), text = strlen(from->tag[i]->text);
        if (name == 0 || name + text + 2 > RAT_TAGS_BYTES - used)
            continue;
        memcpy(to + used, from->tag[i]->name, name + 1);
        memcpy(to + used + name + 1, from->tag[i]->text, text + 1);
        used += name + text + 2;
    }
}

static void read_info(struct rat_session_info *to, const Ratrace__V1__Session *from)
{
    read_text(to->service, sizeof to->service, from->service);
    read_text(to->host, sizeof to->host, from->host);
    read_text(to->ruby, sizeof to->ruby, from->ruby);
    read_text(to->recorder, sizeof to->recorder, from->recorder);
    read_text(to->trace, sizeof to->trace, from->trace);
    read_tags(to->tags, from);
    to->pid = from->pid;
    to->parent_pid = from->parent_pid;
    to->start_ns = from->start_ns;
    to->ticks_per_s = from->ticks_per_s;
    to->slot_bytes = from->slot_bytes;
    if (from->parent_session.len == 16) {
        uint64_t big[2];
        memcpy(big, from->parent_session.data, sizeof big);
        to->parent_hi = be64toh(big[0]);
        to->parent_lo = be64toh(big[1]);
    }
    to->clock = (uint32_t)from->clock;
    to->fence = (uint32_t)from->fence;
    to->frame_path = (uint32_t)from->frame_path;
}

static void read_header(struct rat_chunk_header *to, const Ratrace__V1__Chunk *from)
{
    memcpy(to->sync, from->sync.data, sizeof to->sync);
    to->size = from->size;
    to->requires = from->requires;
    to->session_hi = from->session_hi;
    to->session_lo = from->session_lo;
    to->segment = from->segment;
    to->lane = from->lane;
    to->sequence = from->sequence;
    to->reason = (uint32_t)from->reason;
    read_totals(&to->opened, from->opened);
    read_totals(&to->closed, from->closed);
    to->events = from->events;
    to->in_flight = from->in_flight;
    read_anchor(&to->start, from->start);
    read_anchor(&to->end, from->end);
    for (; to->lost_count < from->n_lost && to->lost_count < RAT_HEADER_LOSTS_MAX; to->lost_count++) {
        const Ratrace__V1__Lost *lost = from->lost[to->lost_count];
        to->lost[to->lost_count] = (struct rat_lost_label){
            .cause = (uint32_t)lost->cause,
            .first_seq = lost->first_seq,
            .last_seq = lost->last_seq,
            .count = lost->count,
            .from_ticks = lost->from_ticks,
            .to_ticks = lost->to_ticks,
        };
    }
    for (; to->mark_count < from->n_mark && to->mark_count < RAT_LANES; to->mark_count++) {
        struct rat_lane_mark *mark = &to->marks[to->mark_count];
        mark->lane = from->mark[to->mark_count]->lane;
        mark->sequence = from->mark[to->mark_count]->sequence;
        read_totals(&mark->closed, from->mark[to->mark_count]->closed);
    }
    to->codec = (uint32_t)from->codec;
    to->raw_bytes = from->raw_bytes;
    to->body_bytes = from->body_bytes;
    to->body_check = from->body_check;
    to->has_info = from->info != NULL;
    if (to->has_info)
        read_info(&to->info, from->info);
}

enum rat_status rat_decode_header(const uint8_t *bytes, size_t length, struct rat_chunk_header *out)
{
    memset(out, 0, sizeof *out);
    size_t checked, body, body_bytes;
    uint32_t check;
    if (length > RAT_CHUNK_MAX || length < 18 || bytes[0] != 0x0A || bytes[1] != 16 ||
        memcmp(bytes + 2, RAT_SYNC_CONSTANT, 8) != 0 ||
        !find_parts(bytes, length, &checked, &check, &body, &body_bytes) ||
        rat_check_crc32c(bytes, checked) != check)
        return RAT_CORRUPT;
    struct rat_budget budget;
    rat_budget_init(&budget, HEADER_MEMORY);
    Ratrace__V1__Chunk *chunk = ratrace__v1__chunk__unpack(&budget.allocator, checked, bytes);
    if (chunk == NULL)
        return budget.refused ? RAT_TOO_BIG : RAT_CORRUPT;
    enum rat_status status = RAT_OK;
    if (chunk->sync.len != sizeof out->sync || chunk->size != length || chunk->body_bytes != body_bytes)
        status = RAT_CORRUPT;
    else
        read_header(out, chunk);
    ratrace__v1__chunk__free_unpacked(chunk, &budget.allocator);
    if (status != RAT_OK)
        return status;
    out->body = bytes + body;
    return out->requires != 0 ? RAT_UNSUPPORTED : RAT_OK;
}
