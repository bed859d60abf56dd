/* target.h - where segments go: the interface a destination implements, and the ones there are.
 *
 * A target turns a parcel into one or more HTTP requests, step by step; the shipper sends each and goes on when it was
 * accepted. After the last one the segment is delivered. A crash or failure between two steps begins again with the
 * first, so every step is one that may be repeated: it carries the parcel's key or writes the same object.
 *
 * A target of another format (OTLP, Pyroscope, ClickHouse) reads the segment through parcel->fd, puts what it made of it
 * into request->body, and needs nothing changed in spool, policy or transport.
 *
 * Threads: request by the shipper's; a target does not change once made.
 */
#ifndef RAT_DELIVER_TARGET_H
#define RAT_DELIVER_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "deliver/http.h"
#include "deliver/parcel.h"

struct rat_target {
    /* Fill in the request of `step` (from 0). RAT_END: there are no more, the parcel is delivered. Any other failure
     * leaves the segment where it is. The caller frees the request, whatever comes back. */
    enum rat_status (*request)(const struct rat_target *target, const struct rat_parcel *parcel, unsigned step,
                               struct rat_http_request *request);
    void (*free)(struct rat_target *target);
};

#define RAT_TARGET_HEADERS_MAX 16

/* How a target is described. Strings stay the caller's and must outlive the target. */
struct rat_target_options {
    const char *url;                              /* http(s)://…; or NULL, and s3 is used */
    const char *method;                           /* "PUT" or "POST"; NULL = "PUT" */
    const char *headers[RAT_TARGET_HEADERS_MAX];  /* "Name: value" */
    size_t header_count;
    const char *token;                            /* sent as a bearer token; NULL = none */
    const char *finalize_url;                     /* NULL = no finalize */
    struct {
        const char *bucket, *prefix;              /* bucket NULL = no S3; prefix NULL = "" */
        const char *endpoint;                     /* http(s)://host[:port]; NULL = https://s3.REGION.amazonaws.com */
        const char *region;                       /* NULL = "us-east-1" */
        const char *access_key_id, *secret_access_key, *session_token;
        bool path_style;                          /* endpoint/bucket/key; else bucket.endpoint/key */
    } s3;
};

/* Check the description and make its target. RAT_INVALID: `why` names the key, the value where it is no secret, and the
 * remedy. */
RAT_MUST_CHECK enum rat_status rat_target_new(const struct rat_target_options *options, struct rat_target **out,
                                              char *why, size_t why_length);

/* The two targets; the options are checked. */
RAT_MUST_CHECK enum rat_status rat_http_target_new(const struct rat_target_options *options, struct rat_target **out);
RAT_MUST_CHECK enum rat_status rat_s3_target_new(const struct rat_target_options *options, struct rat_target **out);

/* ---------------------------------------------------------------- what targets share */

/* Idempotency-Key, Content-Type, Content-Digest and the segment's name. */
RAT_MUST_CHECK enum rat_status rat_target_describe(const struct rat_parcel *parcel, struct rat_http_request *request);

/* The token, and the headers of the options; with `amz`, only those whose names begin with x-amz-, without it only the
 * others. */
RAT_MUST_CHECK enum rat_status rat_target_headers(const struct rat_target_options *options, bool amz,
                                                  struct rat_http_request *request);

/* The finalize request: metadata as JSON, `object` (NULL = none) being the key of the stored object and `url` where it
 * lies. */
RAT_MUST_CHECK enum rat_status rat_target_finalize(const struct rat_target_options *options,
                                                   const struct rat_parcel *parcel, const char *object,
                                                   const char *url, struct rat_http_request *request);

#endif
