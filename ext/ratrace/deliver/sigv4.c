#include "deliver/sigv4.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utc.h"

#define CANONICAL_MAX (UINT32_C(64) << 10)

void rat_sigv4_date(time_t now, char out[RAT_SIGV4_DATE])
{
    rat_utc_basic(now > 0 ? (uint64_t)now : 0, out);
}

static enum rat_status put(struct rat_buffer *to, const char *text)
{
    return rat_buffer_append(to, text, strlen(text));
}

static enum rat_status put_all(struct rat_buffer *to, size_t count, ...)
{
    va_list texts;
    va_start(texts, count);
    enum rat_status status = RAT_OK;
    for (size_t i = 0; i < count && status == RAT_OK; i++)
        status = put(to, va_arg(texts, const char *));
    va_end(texts);
    return status;
}

enum rat_status rat_sigv4_encode_path(const char *path, struct rat_buffer *out)
{
    enum rat_status status = RAT_OK;
    for (const unsigned char *p = (const unsigned char *)path; *p != '\0' && status == RAT_OK; p++) {
        char code[4];
        bool plain = (*p < 0x80 && isalnum(*p)) || strchr("-_.~/", *p) != NULL;
        snprintf(code, sizeof code, plain ? "%c" : "%%%02X", *p);
        status = put(out, code);
    }
    return status;
}

/* ---------------------------------------------------------------- canonical headers */

static int compare_names(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    for (;; x++, y++) {
        int cx = *x == ':' ? 0 : tolower((unsigned char)*x), cy = *y == ':' ? 0 : tolower((unsigned char)*y);
        if (cx != cy || cx == 0)
            return cx - cy;
    }
}

/* The name in small letters, and with `value` the value behind a colon, without spaces around and with single ones in
 * it. */
static enum rat_status put_header(struct rat_buffer *to, const char *header, bool value)
{
    enum rat_status status = RAT_OK;
    const char *p = header;
    for (; *p != ':' && *p != '\0' && status == RAT_OK; p++)
        status = put(to, (char[]){(char)tolower((unsigned char)*p), '\0'});
    if (!value || status != RAT_OK)
        return status;
    status = put(to, ":");
    bool space = false, any = false;
    for (p += *p == ':'; *p != '\0' && status == RAT_OK; p++) {
        if (*p == ' ' || *p == '\t') {
            space = any;
            continue;
        }
        status = put(to, (char[]){space ? ' ' : *p, space ? *p : '\0', '\0'});
        space = false;
        any = true;
    }
    return status == RAT_OK ? put(to, "\n") : status;
}

static enum rat_status put_headers(struct rat_buffer *to, const struct rat_sigv4_request *request, bool values)
{
    const char *sorted[RAT_SIGV4_HEADERS_MAX];
    if (request->header_count > RAT_SIGV4_HEADERS_MAX)
        return RAT_TOO_BIG;
    memcpy(sorted, request->headers, request->header_count * sizeof *sorted);
    qsort(sorted, request->header_count, sizeof *sorted, compare_names);
    enum rat_status status = RAT_OK;
    for (size_t i = 0; i < request->header_count && status == RAT_OK; i++) {
        if (!values && i > 0)
            status = put(to, ";");
        if (status == RAT_OK)
            status = put_header(to, sorted[i], values);
    }
    return status;
}

/* ---------------------------------------------------------------- the three steps */

static enum rat_status canonical_hash(const struct rat_sigv4_request *request, char hex[RAT_SHA256_HEX])
{
    struct rat_buffer text;
    uint8_t hash[RAT_SHA256_BYTES];
    rat_buffer_init(&text, CANONICAL_MAX);
    enum rat_status status = put_all(&text, 6, request->method, "\n", request->path, "\n", request->query, "\n");
    if (status == RAT_OK)
        status = put_headers(&text, request, true);
    if (status == RAT_OK)
        status = put(&text, "\n");
    if (status == RAT_OK)
        status = put_headers(&text, request, false);
    if (status == RAT_OK)
        status = put_all(&text, 2, "\n", request->payload_hash);
    if (status == RAT_OK)
        status = rat_sha256(text.bytes, text.length, hash);
    if (status == RAT_OK)
        rat_hex(hash, sizeof hash, hex);
    rat_buffer_free(&text);
    return status;
}

static enum rat_status derive(uint8_t key[RAT_SHA256_BYTES], const char *text, size_t length)
{
    uint8_t next[RAT_SHA256_BYTES];
    enum rat_status status = rat_hmac_sha256(key, RAT_SHA256_BYTES, text, length, next);
    if (status == RAT_OK)
        memcpy(key, next, sizeof next);
    return status;
}

static enum rat_status signing_key(const struct rat_sigv4 *signer, uint8_t key[RAT_SHA256_BYTES])
{
    char secret[512];
    int length = snprintf(secret, sizeof secret, "AWS4%s", signer->secret_access_key);
    enum rat_status status = RAT_TOO_BIG;
    if (length > 0 && (size_t)length < sizeof secret)
        status = rat_hmac_sha256(secret, (size_t)length, signer->date, 8, key);
    explicit_bzero(secret, sizeof secret);
    if (status == RAT_OK)
        status = derive(key, signer->region, strlen(signer->region));
    if (status == RAT_OK)
        status = derive(key, signer->service, strlen(signer->service));
    return status == RAT_OK ? derive(key, "aws4_request", 12) : status;
}

enum rat_status rat_sigv4_authorization(const struct rat_sigv4 *signer, const struct rat_sigv4_request *request,
                                        struct rat_buffer *out)
{
    char scope[256], hash[RAT_SHA256_HEX], to_sign[512], signature[RAT_SHA256_HEX];
    uint8_t key[RAT_SHA256_BYTES];
    if ((size_t)snprintf(scope, sizeof scope, "%.8s/%s/%s/aws4_request", signer->date, signer->region,
                         signer->service) >= sizeof scope)
        return RAT_TOO_BIG;
    enum rat_status status = canonical_hash(request, hash);
    if (status == RAT_OK)
        status = signing_key(signer, key);
    if (status != RAT_OK)
        return status;
    int length = snprintf(to_sign, sizeof to_sign, "AWS4-HMAC-SHA256\n%s\n%s\n%s", signer->date, scope, hash);
    status = derive(key, to_sign, (size_t)length);
    rat_hex(key, sizeof key, signature);
    explicit_bzero(key, sizeof key);
    if (status == RAT_OK)
        status = put_all(out, 5, "AWS4-HMAC-SHA256 Credential=", signer->access_key_id, "/", scope, ", SignedHeaders=");
    if (status == RAT_OK)
        status = put_headers(out, request, false);
    if (status == RAT_OK)
        status = put_all(out, 2, ", Signature=", signature);
    return status == RAT_OK ? rat_buffer_append(out, "", 1) : status;
}
