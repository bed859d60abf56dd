#include "base/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define CASTAGNOLI 0x82F63B78u /* reflected 0x1EDC6F41 */

/* Bit by bit: a chunk header is a few hundred bytes, so a table would be memory for nothing. */
uint32_t rat_check_crc32c(const void *bytes, size_t length)
{
    const uint8_t *at = bytes;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < length; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (CASTAGNOLI & (0u - (crc & 1u)));
    }
    return ~crc;
}

uint64_t rat_check_xxh3(const void *bytes, size_t length)
{
    return XXH3_64bits(bytes, length);
}
