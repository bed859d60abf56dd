/* digest.h - SHA-256 and HMAC-SHA-256, by libcrypto; rat_crypto_load first.
 *
 * Threads: one at a time for a digest.
 */
#ifndef RAT_DELIVER_DIGEST_H
#define RAT_DELIVER_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define RAT_SHA256_BYTES 32
#define RAT_SHA256_HEX 65 /* with its NUL */

struct rat_sha256 {
    void *context;
};

/* Begin; then update; then finish, which also frees (`out` NULL: only that). Failures show at the end, as RAT_NO_MEMORY. */
void rat_sha256_begin(struct rat_sha256 *digest);
void rat_sha256_update(struct rat_sha256 *digest, const void *bytes, size_t length);
RAT_MUST_CHECK enum rat_status rat_sha256_finish(struct rat_sha256 *digest, uint8_t out[RAT_SHA256_BYTES]);

RAT_MUST_CHECK enum rat_status rat_sha256(const void *bytes, size_t length, uint8_t out[RAT_SHA256_BYTES]);
RAT_MUST_CHECK enum rat_status rat_hmac_sha256(const void *key, size_t key_length, const void *bytes, size_t length,
                                               uint8_t out[RAT_SHA256_BYTES]);

void rat_hex(const uint8_t *bytes, size_t length, char *out);                     /* 2 × length + NUL */
void rat_base64(const uint8_t *bytes, size_t length, char *out);                  /* 4 × ceil(length / 3) + NUL */

#endif
