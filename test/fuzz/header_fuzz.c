/* header_fuzz.c - any bytes as a Chunk: refused, or read without harm. First byte 0: the bytes as they are. Else they
 * are the fields between `size` and `header_check`, and everything around them is made right. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 20000)
        return 0;
    uint8_t mode = *data++;
    size--;
    struct rat_chunk_header header;
    size_t length = mode == 0 ? size : 23 + size + 6 + 3 + 5;
    uint8_t *bytes = malloc(length > 0 ? length : 1);
    MUST(bytes != NULL);
    if (mode == 0) {
        memcpy(bytes, data, size);
    } else {
        memcpy(bytes, "\x0A\x10" RAT_SYNC_CONSTANT "fuzzfuzz\x15", 19);
        for (int i = 0; i < 4; i++)
            bytes[19 + i] = (uint8_t)(length >> 8 * i);
        memcpy(bytes + 23, data, size);
        uint32_t check = rat_check_crc32c(bytes, 23 + size);
        uint8_t tail[] = {0xF5, 1, (uint8_t)check, (uint8_t)(check >> 8), (uint8_t)(check >> 16), (uint8_t)(check >> 24),
                          0xFA, 1, 5, 'b', 'y', 't', 'e', 's'};
        memcpy(bytes + 23 + size, tail, sizeof tail);
    }
    enum rat_status status = rat_decode_header(bytes, length, &header);
    MUST(status == RAT_OK || status == RAT_CORRUPT || status == RAT_UNSUPPORTED || status == RAT_TOO_BIG);
    if (status == RAT_OK || status == RAT_UNSUPPORTED) {
        MUST(header.size == length && header.lost_count <= RAT_HEADER_LOSTS_MAX);
        MUST(header.body >= bytes && header.body_bytes <= (size_t)(bytes + length - header.body));
        MUST(strlen(header.info.service) < sizeof header.info.service);
    }
    free(bytes);
    return 0;
}
