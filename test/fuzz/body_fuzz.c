/* body_fuzz.c - any bytes as a body whose check holds. First byte: codec; next two: events; next three: raw length of a
 * compressed one. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct rat_decoder *decoder; /* kept from input to input, as a reader does */
    if (decoder == NULL)
        MUST(rat_decoder_new(MEMORY_MAX, &decoder) == RAT_OK);
    if (size < 6)
        return 0;
    size_t length = size - 6;
    uint8_t *bytes = malloc(length > 0 ? length : 1);
    MUST(bytes != NULL);
    memcpy(bytes, data + 6, length);
    const struct rat_chunk_header header = {
        .codec = data[0] % 4,
        .events = data[1] | (uint32_t)data[2] << 8,
        .raw_bytes = data[0] % 4 == RAT_CODEC_STORED ? (uint32_t)length
                                                     : data[3] | (uint32_t)data[4] << 8 | (uint32_t)data[5] << 16,
        .body_bytes = (uint32_t)length,
        .body_check = rat_check_xxh3(bytes, length),
        .body = bytes,
    };
    const struct rat_body *body;
    enum rat_status status = rat_decode_body(decoder, &header, &body);
    if (status == RAT_OK) {
        MUST(body->events == header.events);
        touch_body(body);
    } else {
        MUST(status == RAT_CORRUPT || status == RAT_UNSUPPORTED || status == RAT_TOO_BIG);
    }
    free(bytes);
    return 0;
}
