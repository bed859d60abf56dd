#include "deliver/digest.h"

#include "deliver/curl_library.h"

void rat_sha256_begin(struct rat_sha256 *digest)
{
    digest->context = rat_crypto.EVP_MD_CTX_new();
    if (digest->context == NULL || rat_crypto.EVP_DigestInit_ex(digest->context, rat_crypto.EVP_sha256(), NULL) == 1)
        return;
    rat_crypto.EVP_MD_CTX_free(digest->context);
    digest->context = NULL;
}

void rat_sha256_update(struct rat_sha256 *digest, const void *bytes, size_t length)
{
    if (digest->context == NULL || rat_crypto.EVP_DigestUpdate(digest->context, bytes, length) == 1)
        return;
    rat_crypto.EVP_MD_CTX_free(digest->context);
    digest->context = NULL;
}

enum rat_status rat_sha256_finish(struct rat_sha256 *digest, uint8_t out[RAT_SHA256_BYTES])
{
    if (digest->context == NULL)
        return RAT_NO_MEMORY;
    unsigned length = 0;
    int done = out == NULL || rat_crypto.EVP_DigestFinal_ex(digest->context, out, &length);
    rat_crypto.EVP_MD_CTX_free(digest->context);
    digest->context = NULL;
    return done == 1 ? RAT_OK : RAT_NO_MEMORY;
}

enum rat_status rat_sha256(const void *bytes, size_t length, uint8_t out[RAT_SHA256_BYTES])
{
    struct rat_sha256 digest;
    rat_sha256_begin(&digest);
    rat_sha256_update(&digest, bytes, length);
    return rat_sha256_finish(&digest, out);
}

enum rat_status rat_hmac_sha256(const void *key, size_t key_length, const void *bytes, size_t length,
                                uint8_t out[RAT_SHA256_BYTES])
{
    unsigned out_length = 0;
    return rat_crypto.HMAC(rat_crypto.EVP_sha256(), key, (int)key_length, bytes, length, out, &out_length) != NULL
        ? RAT_OK : RAT_NO_MEMORY;
}

void rat_hex(const uint8_t *bytes, size_t length, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < length; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = '\0';
}

void rat_base64(const uint8_t *bytes, size_t length, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < length; i += 3) {
        size_t here = length - i < 3 ? length - i : 3;
        uint32_t three = (uint32_t)bytes[i] << 16 | (here > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
            (here > 2 ? bytes[i + 2] : 0);
        for (size_t j = 0; j < 4; j++)
            *out++ = j <= here ? digits[three >> (18 - 6 * j) & 63] : '=';
    }
    *out = '\0';
}
