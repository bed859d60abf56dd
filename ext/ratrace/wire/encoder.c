#include "wire/encoder.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#include <zstd_errors.h>

#include "wire/columns.h"
#include "wire/header_encoder.h"
#include "wire/sent.h"
#include "wire/trace.pb-c.h"

#define LEVEL_MAX 19 /* higher ones use windows that readers refuse */
#define TAG_TRACE_CHUNK 0x0A
#define FIELD_BYTES_MAX 16u /* tag and length */

struct rat_encoder {
    struct rat_columns columns;
    struct rat_sent sent;
    struct rat_buffer body;   /* a Body, packed */
    struct rat_buffer packed; /* ... and compressed */
    ZSTD_CCtx *zstd;
    uint8_t header[RAT_CHUNK_HEADER_MAX];
};

enum rat_status rat_encoder_new(uint32_t capacity, int level, struct rat_encoder **out)
{
    struct rat_encoder *encoder = calloc(1, sizeof *encoder);
    if (encoder == NULL)
        return RAT_NO_MEMORY;
    rat_sent_init(&encoder->sent);
    rat_buffer_init(&encoder->body, RAT_CHUNK_RAW_MAX);
    rat_buffer_init(&encoder->packed, ZSTD_COMPRESSBOUND(RAT_CHUNK_RAW_MAX));
    encoder->zstd = ZSTD_createCCtx();
    if (encoder->zstd == NULL || rat_columns_new(&encoder->columns, capacity) != RAT_OK) {
        rat_encoder_free(encoder);
        return RAT_NO_MEMORY;
    }
    int clamped = level < 1 ? 1 : level > LEVEL_MAX ? LEVEL_MAX : level;
    ZSTD_CCtx_setParameter(encoder->zstd, ZSTD_c_compressionLevel, clamped);
    ZSTD_CCtx_setParameter(encoder->zstd, ZSTD_c_contentSizeFlag, 1);
    ZSTD_CCtx_setParameter(encoder->zstd, ZSTD_c_checksumFlag, 1);
    *out = encoder;
    return RAT_OK;
}

void rat_encoder_free(struct rat_encoder *encoder)
{
    if (encoder == NULL)
        return;
    rat_columns_free(&encoder->columns);
    rat_sent_free(&encoder->sent);
    rat_buffer_free(&encoder->body);
    rat_buffer_free(&encoder->packed);
    ZSTD_freeCCtx(encoder->zstd);
    free(encoder);
}

void rat_encoder_begin_segment(struct rat_encoder *encoder)
{
    rat_sent_begin_segment(&encoder->sent);
}

void rat_encoder_settle(struct rat_encoder *encoder, bool appended)
{
    rat_sent_settle(&encoder->sent, appended);
}

/* ---------------------------------------------------------------- body */

static size_t put_varint(uint8_t *at, uint64_t value)
{
    size_t length = 0;
    for (; value > 0x7F; value >>= 7)
        at[length++] = (uint8_t)(value | 0x80);
    at[length++] = (uint8_t)value;
    return length;
}

/* Tag (of one byte) and length of a length-delimited field, and room for its content. */
static enum rat_status begin_field(struct rat_buffer *out, uint8_t number, size_t length)
{
    enum rat_status status = rat_buffer_reserve(out, FIELD_BYTES_MAX + length);
    if (status != RAT_OK)
        return status;
    out->bytes[out->length++] = (uint8_t)(number << 3 | 2);
    out->length += put_varint(out->bytes + out->length, length);
    return RAT_OK;
}

static enum rat_status append_column(struct rat_buffer *out, uint8_t number, const uint8_t *bytes, size_t length)
{
    if (length == 0)
        return RAT_OK; /* as every protobuf library does */
    enum rat_status status = begin_field(out, number, length);
    return status != RAT_OK ? status : rat_buffer_append(out, bytes, length);
}

static enum rat_status append_message(struct rat_buffer *out, uint8_t number, const ProtobufCMessage *message)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    enum rat_status status = begin_field(out, number, length);
    if (status == RAT_OK)
        out->length += protobuf_c_message_pack(message, out->bytes + out->length);
    return status;
}

static enum rat_status append_columns(struct rat_buffer *body, const struct rat_columns *columns, uint64_t base_ticks)
{
    enum rat_status status = RAT_OK;
    if (base_ticks != 0) {
        uint8_t field[9] = {1 << 3 | 1};
        uint64_t little = htole64(base_ticks);
        memcpy(field + 1, &little, sizeof little);
        status = rat_buffer_append(body, field, sizeof field);
    }
    if (status == RAT_OK)
        status = append_column(body, 2, columns->gap, columns->gap_bytes);
    if (status == RAT_OK)
        status = append_column(body, 3, columns->kind, columns->events);
    if (status == RAT_OK)
        status = append_column(body, 4, columns->id, columns->id_bytes);
    if (status == RAT_OK)
        status = append_column(body, 5, columns->rich_words, columns->rich_words_bytes);
    if (status == RAT_OK)
        status = append_column(body, 6, columns->rich, columns->rich_bytes);
    return status;
}

static enum rat_status append_name(struct rat_buffer *body, const struct rat_dict_view *view, rat_name_id id)
{
    struct rat_name_entry entry = view->names[id];
    if (entry.length > RAT_NAME_BYTES_MAX || entry.length > view->text_used ||
        entry.at > view->text_used - entry.length)
        return RAT_CORRUPT;
    Ratrace__V1__Name name = RATRACE__V1__NAME__INIT;
    name.id = id;
    name.text.len = entry.length;
    name.text.data = (uint8_t *)(uintptr_t)(view->text + entry.at); /* only read */
    name.encoding =
        entry.utf8 ? RATRACE__V1__ENCODING__ENCODING_UTF8 : RATRACE__V1__ENCODING__ENCODING_BINARY;
    return append_message(body, 10, &name.base);
}

static enum rat_status append_frame(struct rat_buffer *body, const struct rat_dict_view *view, rat_frame_id id)
{
    const struct rat_frame_entry *entry = &view->frames[id];
    Ratrace__V1__Frame frame = RATRACE__V1__FRAME__INIT;
    frame.id = id;
    frame.owner = entry->owner;
    frame.method = entry->method;
    frame.called_as = entry->called;
    frame.file = entry->file;
    frame.line = entry->line;
    frame.kind = (Ratrace__V1__FrameKind)entry->kind;
    return append_message(body, 11, &frame.base);
}

static enum rat_status append_context(struct rat_buffer *body, rat_context_id id,
                                      const struct rat_context_entry *entry)
{
    Ratrace__V1__Context context = RATRACE__V1__CONTEXT__INIT;
    context.id = id;
    context.kind = (Ratrace__V1__ContextKind)entry->kind;
    context.parent = entry->parent;
    context.os_tid = entry->os_tid;
    context.name = entry->name;
    context.seen_ticks = entry->seen_ticks;
    context.lane = entry->lane;
    return append_message(body, 12, &context.base);
}

/* What this chunk pulled. */
static enum rat_status append_pulled(struct rat_buffer *body, const struct rat_sent *sent)
{
    enum rat_status status = RAT_OK;
    for (size_t i = sent->new_names.chunk; i < sent->new_names.count && status == RAT_OK; i++)
        status = append_name(body, &sent->view, sent->new_names.ids[i]);
    for (size_t i = sent->new_frames.chunk; i < sent->new_frames.count && status == RAT_OK; i++)
        status = append_frame(body, &sent->view, sent->new_frames.ids[i]);
    for (size_t i = sent->new_context_chunk; i < sent->new_context_count && status == RAT_OK; i++)
        status = append_context(body, sent->new_contexts[i].id, &sent->new_contexts[i].entry);
    return status;
}

static enum rat_status append_everything(struct rat_buffer *body, const struct rat_dict_view *view)
{
    enum rat_status status = RAT_OK;
    for (uint64_t id = 1; id <= view->name_count && status == RAT_OK; id++)
        status = append_name(body, view, (rat_name_id)id);
    for (uint64_t id = 1; id <= view->frame_count && status == RAT_OK; id++)
        status = append_frame(body, view, (rat_frame_id)id);
    for (uint64_t id = 1; id <= view->context_count && status == RAT_OK; id++) {
        struct rat_context_entry entry = view->contexts[id];
        status = append_context(body, (rat_context_id)id, &entry);
    }
    return status;
}

/* The body as it goes into the file. A body that does not shrink is stored. */
static enum rat_status compress_body(struct rat_encoder *encoder, const uint8_t **bytes, size_t *length,
                                     enum rat_codec *codec)
{
    const struct rat_buffer *body = &encoder->body;
    *bytes = body->bytes;
    *length = body->length;
    *codec = RAT_CODEC_STORED;
    if (body->length == 0)
        return RAT_OK;
    struct rat_buffer *packed = &encoder->packed;
    packed->length = 0;
    enum rat_status status = rat_buffer_reserve(packed, ZSTD_compressBound(body->length));
    if (status != RAT_OK)
        return status;
    size_t size = ZSTD_compress2(encoder->zstd, packed->bytes, packed->capacity, body->bytes, body->length);
    if (ZSTD_isError(size))
        return ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation ? RAT_NO_MEMORY : RAT_BROKEN;
    if (size < body->length) {
        *bytes = packed->bytes;
        *length = size;
        *codec = RAT_CODEC_ZSTD;
    }
    return RAT_OK;
}

/* Compress the body, put the header before it, append both to `out`. */
static enum rat_status append_chunk(struct rat_encoder *encoder, const struct rat_chunk_info *info, uint32_t events,
                                    struct rat_buffer *out)
{
    struct rat_chunk_body body = {.raw_length = encoder->body.length, .events = events};
    size_t header_bytes;
    enum rat_status status = compress_body(encoder, &body.bytes, &body.length, &body.codec);
    if (status == RAT_OK)
        status = rat_encode_header(info, &body, encoder->header, &header_bytes);
    if (status == RAT_OK)
        status = rat_buffer_reserve(out, FIELD_BYTES_MAX + header_bytes + body.length);
    if (status != RAT_OK)
        return status;
    size_t before = out->length;
    out->bytes[out->length++] = TAG_TRACE_CHUNK;
    out->length += put_varint(out->bytes + out->length, header_bytes + body.length);
    status = rat_buffer_append(out, encoder->header, header_bytes);
    if (status == RAT_OK)
        status = rat_buffer_append(out, body.bytes, body.length);
    if (status != RAT_OK)
        out->length = before;
    return status;
}

/* ---------------------------------------------------------------- chunks */

enum rat_status rat_encoder_lane_chunk(struct rat_encoder *encoder, const struct rat_chunk_info *info,
                                       const uint64_t *words, uint32_t count, uint32_t events, uint64_t base_ticks,
                                       const struct rat_dict_view *dict, struct rat_buffer *out)
{
    enum rat_status status = rat_sent_begin_chunk(&encoder->sent, dict);
    if (status != RAT_OK)
        return status;
    encoder->body.length = 0;
    status = rat_columns_pack(&encoder->columns, words, count, base_ticks, &encoder->sent);
    if (status == RAT_OK && encoder->columns.events != events)
        status = RAT_CORRUPT;
    if (status == RAT_OK)
        status = append_columns(&encoder->body, &encoder->columns, base_ticks);
    if (status == RAT_OK)
        status = append_pulled(&encoder->body, &encoder->sent);
    if (status == RAT_OK)
        status = append_chunk(encoder, info, events, out);
    if (status != RAT_OK)
        rat_sent_undo_chunk(&encoder->sent);
    return status;
}

enum rat_status rat_encoder_session_chunk(struct rat_encoder *encoder, const struct rat_chunk_info *info,
                                          const struct rat_dict_view *dict, struct rat_buffer *out)
{
    encoder->body.length = 0;
    enum rat_status status = dict != NULL ? append_everything(&encoder->body, dict) : RAT_OK;
    return status != RAT_OK ? status : append_chunk(encoder, info, 0, out);
}
