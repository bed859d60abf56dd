#include "wire/decoder.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#include <zstd_errors.h>

#include "base/check.h"
#include "wire/columns.h"
#include "wire/trace.pb-c.h"

#define MEMORY_DEFAULT (UINT32_C(256) << 20)
#define HEADER_MEMORY (UINT32_C(1) << 20) /* to unpack one header */
#define WINDOW_MAX (UINT64_C(1) << 24)

#define FIELD_CHECK 30
#define FIELD_BODY 31
#define WIRE_VARINT 0
#define WIRE_FIXED64 1
#define WIRE_BYTES 2
#define WIRE_FIXED32 5

/* ---------------------------------------------------------------- memory */

/* What protobuf-c may allocate while it reads hostile bytes. Each block remembers its size in front. */
struct budget {
    ProtobufCAllocator allocator;
    size_t left;
    bool refused; /* for lack of budget and not of memory */
};

#define BLOCK_HEAD 16u /* keeps malloc's alignment */

static void *budget_alloc(void *data, size_t size)
{
    struct budget *budget = data;
    if (budget->left < BLOCK_HEAD || size > budget->left - BLOCK_HEAD) {
        budget->refused = true;
        return NULL;
    }
    uint8_t *block = malloc(BLOCK_HEAD + size);
    if (block == NULL)
        return NULL;
    memcpy(block, &size, sizeof size);
    budget->left -= BLOCK_HEAD + size;
    return block + BLOCK_HEAD;
}

static void budget_free(void *data, void *pointer)
{
    if (pointer == NULL)
        return;
    struct budget *budget = data;
    uint8_t *block = (uint8_t *)pointer - BLOCK_HEAD;
    size_t size;
    memcpy(&size, block, sizeof size);
    budget->left += BLOCK_HEAD + size;
    free(block);
}

static void budget_init(struct budget *budget, size_t bytes)
{
    *budget = (struct budget){.allocator = {budget_alloc, budget_free, budget}, .left = bytes};
}

/* ---------------------------------------------------------------- header */

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

static void read_info(struct rat_session_info *to, const Ratrace__V1__Session *from)
{
    read_text(to->service, sizeof to->service, from->service);
    read_text(to->host, sizeof to->host, from->host);
    read_text(to->ruby, sizeof to->ruby, from->ruby);
    read_text(to->recorder, sizeof to->recorder, from->recorder);
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
    struct budget budget;
    budget_init(&budget, HEADER_MEMORY);
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

/* ---------------------------------------------------------------- body */

struct rat_decoder {
    size_t memory_max;
    ZSTD_DCtx *zstd;
    struct budget budget;
    uint8_t *raw; /* decompressed */
    Ratrace__V1__Body *message;
    struct rat_body_name *names;
    struct rat_body_frame *frames;
    struct rat_body_context *contexts;
    struct rat_body body;
};

enum rat_status rat_decoder_new(size_t memory_max, struct rat_decoder **out)
{
    struct rat_decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder == NULL)
        return RAT_NO_MEMORY;
    decoder->memory_max = memory_max != 0 ? memory_max : MEMORY_DEFAULT;
    budget_init(&decoder->budget, decoder->memory_max);
    decoder->zstd = ZSTD_createDCtx();
    if (decoder->zstd == NULL) {
        free(decoder);
        return RAT_NO_MEMORY;
    }
    *out = decoder;
    return RAT_OK;
}

static void forget_body(struct rat_decoder *decoder)
{
    struct budget *budget = &decoder->budget;
    if (decoder->message != NULL)
        ratrace__v1__body__free_unpacked(decoder->message, &budget->allocator);
    budget_free(budget, decoder->raw);
    budget_free(budget, decoder->names);
    budget_free(budget, decoder->frames);
    budget_free(budget, decoder->contexts);
    decoder->message = NULL;
    decoder->raw = NULL;
    decoder->names = NULL;
    decoder->frames = NULL;
    decoder->contexts = NULL;
    budget->refused = false;
}

void rat_decoder_free(struct rat_decoder *decoder)
{
    if (decoder == NULL)
        return;
    forget_body(decoder);
    ZSTD_freeDCtx(decoder->zstd);
    free(decoder);
}

static enum rat_status no_memory(const struct rat_decoder *decoder)
{
    return decoder->budget.refused ? RAT_TOO_BIG : RAT_NO_MEMORY;
}

/* Is this one plain zstd frame (RFC 8878, 3.1.1) of exactly `raw_bytes`, without dictionary, with a small window and
 * nothing behind it? Asked before zstd decompresses anything. */
static bool is_good_frame(const uint8_t *bytes, size_t length, uint32_t raw_bytes)
{
    static const uint8_t magic[] = {0x28, 0xB5, 0x2F, 0xFD};
    if (length < 6 || memcmp(bytes, magic, sizeof magic) != 0)
        return false;
    uint8_t descriptor = bytes[4];
    bool single_segment = descriptor & 0x20; /* then the window is the content, which is bounded already */
    if (!single_segment) {
        uint64_t base = UINT64_C(1) << (10 + (bytes[5] >> 3));
        if (base + base / 8 * (bytes[5] & 7) > WINDOW_MAX)
            return false;
    }
    return (descriptor & 3) == 0 && ZSTD_getFrameContentSize(bytes, length) == raw_bytes &&
           ZSTD_findFrameCompressedSize(bytes, length) == length;
}

static enum rat_status decompress(struct rat_decoder *decoder, const struct rat_chunk_header *header,
                                  const uint8_t **raw)
{
    *raw = header->body;
    if (header->codec == RAT_CODEC_STORED)
        return header->raw_bytes == header->body_bytes ? RAT_OK : RAT_CORRUPT;
    if (header->codec != RAT_CODEC_ZSTD)
        return RAT_UNSUPPORTED;
    if (!is_good_frame(header->body, header->body_bytes, header->raw_bytes))
        return RAT_CORRUPT;
    decoder->raw = budget_alloc(&decoder->budget, header->raw_bytes);
    if (decoder->raw == NULL)
        return no_memory(decoder);
    size_t size = ZSTD_decompressDCtx(decoder->zstd, decoder->raw, header->raw_bytes, header->body, header->body_bytes);
    if (ZSTD_isError(size))
        return ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation ? RAT_NO_MEMORY : RAT_CORRUPT;
    *raw = decoder->raw;
    return size == header->raw_bytes ? RAT_OK : RAT_CORRUPT;
}

/* One entry of each column for each event, and nothing left over. */
static bool columns_agree(const Ratrace__V1__Body *message, uint32_t events)
{
    if (message->n_gap != events || message->kind.len != events)
        return false;
    uint64_t ticks = message->base_ticks;
    size_t ids = 0, riches = 0, words = 0;
    for (size_t i = 0; i < events; i++) {
        uint8_t kind = message->kind.data[i];
        if (rat_kind_is_wrong(kind) || __builtin_add_overflow(ticks, message->gap[i], &ticks))
            return false;
        if (rat_kind_is_rich(kind)) {
            if (riches == message->n_rich_words || message->rich_words[riches] > message->n_rich - words ||
                !rat_payload_fits(kind, message->rich + words, message->rich_words[riches]))
                return false;
            words += message->rich_words[riches++];
        } else if (rat_kind_has_id(kind)) {
            if (ids == message->n_id || message->id[ids] > RAT_EVENT_ID_MAX)
                return false;
            ids++;
        }
    }
    return ids == message->n_id && riches == message->n_rich_words && words == message->n_rich;
}

static enum rat_status read_names(struct rat_decoder *decoder)
{
    const Ratrace__V1__Body *message = decoder->message;
    decoder->names = budget_alloc(&decoder->budget, message->n_name * sizeof *decoder->names);
    if (decoder->names == NULL)
        return no_memory(decoder);
    for (size_t i = 0; i < message->n_name; i++) {
        const Ratrace__V1__Name *name = message->name[i];
        if (name->id == 0 || name->id > RAT_EVENT_ID_MAX || name->text.len > RAT_NAME_BYTES_MAX)
            return RAT_CORRUPT;
        decoder->names[i] = (struct rat_body_name){
            .id = name->id,
            .length = (uint32_t)name->text.len,
            .encoding = (uint32_t)name->encoding,
            .text = name->text.len > 0 ? name->text.data : (const uint8_t *)"",
        };
    }
    return RAT_OK;
}

static enum rat_status read_frames(struct rat_decoder *decoder)
{
    const Ratrace__V1__Body *message = decoder->message;
    decoder->frames = budget_alloc(&decoder->budget, message->n_frame * sizeof *decoder->frames);
    if (decoder->frames == NULL)
        return no_memory(decoder);
    for (size_t i = 0; i < message->n_frame; i++) {
        const Ratrace__V1__Frame *frame = message->frame[i];
        if (frame->id == 0 || frame->id > RAT_EVENT_ID_MAX || frame->owner > RAT_EVENT_ID_MAX ||
            frame->method > RAT_EVENT_ID_MAX || frame->called_as > RAT_EVENT_ID_MAX || frame->file > RAT_EVENT_ID_MAX)
            return RAT_CORRUPT;
        decoder->frames[i] = (struct rat_body_frame){
            .id = frame->id,
            .entry =
                {
                    .owner = frame->owner,
                    .method = frame->method,
                    .called = frame->called_as,
                    .file = frame->file,
                    .line = frame->line,
                    .kind = (uint32_t)frame->kind,
                },
        };
    }
    return RAT_OK;
}

static enum rat_status read_contexts(struct rat_decoder *decoder)
{
    const Ratrace__V1__Body *message = decoder->message;
    decoder->contexts = budget_alloc(&decoder->budget, message->n_context * sizeof *decoder->contexts);
    if (decoder->contexts == NULL)
        return no_memory(decoder);
    for (size_t i = 0; i < message->n_context; i++) {
        const Ratrace__V1__Context *context = message->context[i];
        if (context->id == 0 || context->id > RAT_EVENT_ID_MAX || context->parent > RAT_EVENT_ID_MAX ||
            context->name > RAT_EVENT_ID_MAX)
            return RAT_CORRUPT;
        decoder->contexts[i] = (struct rat_body_context){
            .id = context->id,
            .entry =
                {
                    .kind = (uint32_t)context->kind,
                    .parent = context->parent,
                    .name = context->name,
                    .lane = context->lane,
                    .os_tid = context->os_tid,
                    .seen_ticks = context->seen_ticks,
                },
        };
    }
    return RAT_OK;
}

static enum rat_status decode(struct rat_decoder *decoder, const struct rat_chunk_header *header)
{
    if (header->requires != 0)
        return RAT_UNSUPPORTED;
    if (header->raw_bytes > RAT_CHUNK_RAW_MAX)
        return RAT_TOO_BIG;
    if (header->events > header->raw_bytes)
        return RAT_CORRUPT;
    if (rat_check_xxh3(header->body, header->body_bytes) != header->body_check)
        return RAT_CORRUPT;
    const uint8_t *raw;
    enum rat_status status = decompress(decoder, header, &raw);
    if (status != RAT_OK)
        return status;
    decoder->message = ratrace__v1__body__unpack(&decoder->budget.allocator, header->raw_bytes, raw);
    if (decoder->message == NULL)
        return decoder->budget.refused ? RAT_TOO_BIG : RAT_CORRUPT;
    if (!columns_agree(decoder->message, header->events))
        return RAT_CORRUPT;
    status = read_names(decoder);
    if (status == RAT_OK)
        status = read_frames(decoder);
    if (status == RAT_OK)
        status = read_contexts(decoder);
    return status;
}

enum rat_status rat_decode_body(struct rat_decoder *decoder, const struct rat_chunk_header *header,
                                const struct rat_body **out)
{
    forget_body(decoder);
    enum rat_status status = decode(decoder, header);
    if (status != RAT_OK) {
        forget_body(decoder);
        return status;
    }
    const Ratrace__V1__Body *message = decoder->message;
    decoder->body = (struct rat_body){
        .base_ticks = message->base_ticks,
        .gap = message->gap,
        .kind = message->kind.data,
        .id = message->id,
        .rich_words = message->rich_words,
        .rich = message->rich,
        .events = message->n_gap,
        .ids = message->n_id,
        .riches = message->n_rich_words,
        .rich_total = message->n_rich,
        .names = decoder->names,
        .name_count = message->n_name,
        .frames = decoder->frames,
        .frame_count = message->n_frame,
        .contexts = decoder->contexts,
        .context_count = message->n_context,
    };
    *out = &decoder->body;
    return RAT_OK;
}
