/* check.h - the two checksums of the file format: CRC32C for chunk headers, XXH3-64 for chunk bodies. Any thread. */
#ifndef RAT_BASE_CHECK_H
#define RAT_BASE_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `length` bytes. */
uint32_t rat_check_crc32c(const void *bytes, size_t length);

/* XXH3-64 with seed 0 (xxHash specification 0.1.1), also used as the hash of the native tables. */
uint64_t rat_check_xxh3(const void *bytes, size_t length);

#endif
