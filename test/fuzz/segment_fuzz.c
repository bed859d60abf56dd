/* segment_fuzz.c - a file of any bytes: the reader covers it, ends, and each body decodes or is refused.
 *
 * An input that begins as a segment does (0A) is the file. Any other is a recipe, since no mutation would hit a header
 * check: op, length (two bytes), bytes; and so on. op % 4: 0 = the bytes as they are, 1 = a whole chunk with them as
 * stored body, 2 = the same without its last bytes, 3 = the same without tag and length.
 */
#include "fuzz.h"

#include "wire/header_encoder.h"

static void put(struct rat_buffer *file, const void *bytes, size_t length)
{
    MUST(rat_buffer_append(file, bytes, length) == RAT_OK);
}

static void put_chunk(struct rat_buffer *file, uint8_t op, const uint8_t *bytes, size_t length)
{
    static uint8_t header[RAT_CHUNK_HEADER_MAX];
    static struct rat_live_head session = {.session_hi = 1};
    memcpy(session.sync, RAT_SYNC_CONSTANT "fuzzfuzz", 16);
    session.sync[15] = op >> 6;
    const struct rat_chunk_info info = {.session = &session, .lane = 1, .sequence = op, .with_session = op & 0x20};
    const struct rat_chunk_body body = {
        .bytes = bytes,
        .length = length,
        .raw_length = length,
        .codec = RAT_CODEC_STORED,
        .events = op & 0x10 ? (uint32_t)length / 8 : 0,
    };
    size_t header_bytes, before = file->length;
    MUST(rat_encode_header(&info, &body, header, &header_bytes) == RAT_OK);
    if (op % 4 != 3) {
        uint8_t tag = 0x0A;
        put(file, &tag, 1);
        for (size_t left = header_bytes + length;; left >>= 7) {
            uint8_t byte = (uint8_t)((left & 0x7F) | (left > 0x7F ? 0x80 : 0));
            put(file, &byte, 1);
            if (left <= 0x7F)
                break;
        }
    }
    put(file, header, header_bytes);
    put(file, bytes, length);
    if (op % 4 == 2)
        file->length -= (op >> 2 & 3) < file->length - before ? 1 + (op >> 2 & 3) : 0;
}

static void cook(struct rat_buffer *file, const uint8_t *data, size_t size)
{
    while (size >= 3) {
        size_t length = data[1] | (size_t)data[2] << 8;
        uint8_t op = data[0];
        data += 3, size -= 3;
        if (length > size)
            length = size;
        if (op % 4 == 0)
            put(file, data, length);
        else
            put_chunk(file, op, data, length);
        data += length, size -= length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rat_buffer file;
    rat_buffer_init(&file, 1 << 26);
    if (size > 0 && data[0] == 0x0A)
        put(&file, data, size);
    else
        cook(&file, data, size);
    uint8_t *exact = malloc(file.length > 0 ? file.length : 1); /* so that one byte too many is seen */
    MUST(exact != NULL);
    if (file.length > 0)
        memcpy(exact, file.bytes, file.length);

    struct rat_segment_reader *reader;
    struct rat_decoder *decoder;
    MUST(rat_segment_open_bytes(exact, file.length, &reader) == RAT_OK);
    MUST(rat_decoder_new(MEMORY_MAX, &decoder) == RAT_OK);
    struct rat_read read;
    uint64_t at = 0;
    for (rat_segment_next(reader, &read); read.kind != RAT_READ_END; rat_segment_next(reader, &read)) {
        MUST(read.at == at && read.length > 0 && read.length <= file.length - at);
        at += read.length;
        const struct rat_body *body;
        if (read.kind == RAT_READ_CHUNK && rat_decode_body(decoder, &read.header, &body) == RAT_OK)
            touch_body(body);
    }
    MUST(at == file.length);
    rat_decoder_free(decoder);
    rat_segment_reader_free(reader);
    free(exact);
    rat_buffer_free(&file);
    return 0;
}
