#include "wire/decoder.h"

#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#include <zstd_errors.h>

#include "base/check.h"
#include "wire/budget.h"
#include "wire/columns.h"
#include "wire/trace.pb-c.h"

#define MEMORY_DEFAULT (UINT32_C(256) << 20)
#define WINDOW_MAX (UINT64_C(1) << 24)

struct rat_decoder {
    size_t memory_max;
    ZSTD_DCtx *zstd;
    struct rat_budget budget;
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
    rat_budget_init(&decoder->budget, decoder->memory_max);
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
    struct rat_budget *budget = &decoder->budget;
    if (decoder->message != NULL)
        ratrace__v1__body__free_unpacked(decoder->message, &budget->allocator);
    rat_budget_free(budget, decoder->raw);
    rat_budget_free(budget, decoder->names);
    rat_budget_free(budget, decoder->frames);
    rat_budget_free(budget, decoder->contexts);
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
    decoder->raw = rat_budget_alloc(&decoder->budget, header->raw_bytes);
    if (decoder->raw == NULL)
        return no_memory(decoder);
    size_t size = ZSTD_decompressDCtx(decoder->zstd, decoder->raw, header->raw_bytes, header->body, header->body_bytes);
    if (ZSTD_isError(size))
        return ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation ? RAT_NO_MEMORY : RAT_CORRUPT;
    *raw = decoder->raw;
    return size == header->raw_bytes ? RAT_OK : RAT_CORRUPT;
}

/* The payloads; where there is none there is still a place to point at. */
static const uint64_t *payloads(const Ratrace__V1__Body *message)
{
    static const uint64_t none;
    return message->n_rich > 0 ? message->rich : &none;
}

/* One entry of each column for each event, and nothing left over. */
static bool columns_agree(const Ratrace__V1__Body *message, uint32_t events)
{
    if (message->n_gap != events || message->kind.len != events)
        return false;
    const uint64_t *rich = payloads(message);
    uint64_t ticks = message->base_ticks;
    size_t ids = 0, riches = 0, words = 0;
    for (size_t i = 0; i < events; i++) {
        uint8_t kind = message->kind.data[i];
        if (rat_kind_is_wrong(kind) || __builtin_add_overflow(ticks, message->gap[i], &ticks))
            return false;
        if (rat_kind_is_rich(kind)) {
            if (riches == message->n_rich_words || message->rich_words[riches] > message->n_rich - words ||
                !rat_payload_fits(kind, rich + words, message->rich_words[riches]))
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
    decoder->names = rat_budget_alloc(&decoder->budget, message->n_name * sizeof *decoder->names);
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
    decoder->frames = rat_budget_alloc(&decoder->budget, message->n_frame * sizeof *decoder->frames);
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
    decoder->contexts = rat_budget_alloc(&decoder->budget, message->n_context * sizeof *decoder->contexts);
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
        .rich = payloads(message),
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
