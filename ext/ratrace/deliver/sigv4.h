/* sigv4.h - AWS Signature Version 4 in the Authorization header, over libcrypto (digest.h). Pure functions.
 *
 * Our own, because libcurl's CURLOPT_AWS_SIGV4 changed its treatment of paths, queries and headers from 7.75 to 8.x, and
 * what is signed must not depend on the libcurl a host happens to have.
 */
#ifndef RAT_DELIVER_SIGV4_H
#define RAT_DELIVER_SIGV4_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/buffer.h"
#include "base/status.h"
#include "base/utc.h"
#include "deliver/digest.h"

#define RAT_SIGV4_DATE RAT_UTC_BASIC /* "20130524T000000Z" and its NUL */
#define RAT_SIGV4_HEADERS_MAX 32

struct rat_sigv4 {
    const char *access_key_id, *secret_access_key;
    const char *region, *service;
    char date[RAT_SIGV4_DATE]; /* as in the x-amz-date header */
};

struct rat_sigv4_request {
    const char *method;
    const char *path;            /* encoded, as it is sent */
    const char *query;           /* canonical: encoded and sorted; "" = none */
    const char *const *headers;  /* "Name: value", all that are to be signed, Host included; no name twice */
    size_t header_count;
    const char *payload_hash;    /* hex SHA-256 of the body */
};

/* "YYYYMMDDTHHMMSSZ". */
void rat_sigv4_date(time_t now, char out[RAT_SIGV4_DATE]);

/* Percent-encode as S3 does, once: all but A-Z a-z 0-9 - _ . ~ and the slash. Appends to `out`, without a NUL. */
RAT_MUST_CHECK enum rat_status rat_sigv4_encode_path(const char *path, struct rat_buffer *out);

/* The value of the Authorization header, NUL-terminated, into `out`. RAT_TOO_BIG for too many headers. */
RAT_MUST_CHECK enum rat_status rat_sigv4_authorization(const struct rat_sigv4 *signer,
                                                       const struct rat_sigv4_request *request,
                                                       struct rat_buffer *out);

#endif
