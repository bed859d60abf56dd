/* s3_target.c - the segment as an object of S3-compatible storage, signed with SigV4.
 *
 * The body's SHA-256 is always signed, over https as well: it is at hand anyway. The token and the other headers of the
 * options are not for the storage but for the finalize request; only headers named x-amz-… go to the storage, signed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buffer.h"
#include "deliver/sigv4.h"
#include "deliver/target.h"

struct s3_target {
    struct rat_target target;
    struct rat_target_options options;
};

struct place {
    char object[1100]; /* the key */
    char host[512];
    char path[RAT_HTTP_URL_MAX / 2]; /* encoded */
    char url[RAT_HTTP_URL_MAX];
};

static const char *region_of(const struct rat_target_options *options)
{
    return options->s3.region != NULL ? options->s3.region : "us-east-1";
}

/* Where the object goes. S3 takes the path encoded once; what is signed and what is sent are the same text. */
static enum rat_status locate(const struct rat_target_options *options, const struct rat_parcel *parcel,
                              struct place *out)
{
    char endpoint[512], plain[1400];
    if (options->s3.endpoint != NULL)
        snprintf(endpoint, sizeof endpoint, "%s", options->s3.endpoint);
    else
        snprintf(endpoint, sizeof endpoint, "https://s3.%s.amazonaws.com", region_of(options));
    const char *host = strstr(endpoint, "://") + 3;
    bool path_style = options->s3.path_style;
    if ((size_t)snprintf(out->object, sizeof out->object, "%s%s", options->s3.prefix != NULL ? options->s3.prefix : "",
                         parcel->name) >= sizeof out->object)
        return RAT_TOO_BIG;
    if (path_style) {
        snprintf(out->host, sizeof out->host, "%s", host);
        snprintf(plain, sizeof plain, "/%s/%s", options->s3.bucket, out->object);
    } else {
        if ((size_t)snprintf(out->host, sizeof out->host, "%s.%s", options->s3.bucket, host) >= sizeof out->host)
            return RAT_TOO_BIG;
        snprintf(plain, sizeof plain, "/%s", out->object);
    }
    struct rat_buffer path;
    rat_buffer_init(&path, sizeof out->path);
    enum rat_status status = rat_sigv4_encode_path(plain, &path);
    if (status == RAT_OK)
        status = rat_buffer_append(&path, "", 1);
    if (status == RAT_OK)
        memcpy(out->path, path.bytes, path.length);
    rat_buffer_free(&path);
    if (status == RAT_OK)
        snprintf(out->url, sizeof out->url, "%.*s%s%s", (int)(host - endpoint), endpoint, out->host, out->path);
    return status;
}

/* The Host that libcurl sends: without the port where it is the scheme's own. */
static void host_header(const struct place *place, char *out, size_t length)
{
    bool tls = strncmp(place->url, "https", 5) == 0;
    size_t host = strlen(place->host), port = tls ? 4 : 3;
    bool drop = host > port && strcmp(place->host + host - port, tls ? ":443" : ":80") == 0;
    snprintf(out, length, "Host: %.*s", (int)(host - (drop ? port : 0)), place->host);
}

static enum rat_status sign(const struct rat_target_options *options, const struct place *place,
                            const struct rat_parcel *parcel, struct rat_http_request *request)
{
    struct rat_sigv4 signer = {
        .access_key_id = options->s3.access_key_id,
        .secret_access_key = options->s3.secret_access_key,
        .region = region_of(options),
        .service = "s3",
    };
    rat_sigv4_date(time(NULL), signer.date);
    enum rat_status status = rat_http_request_header(request, "x-amz-content-sha256: %s", parcel->sha256_hex);
    if (status == RAT_OK)
        status = rat_http_request_header(request, "x-amz-date: %s", signer.date);
    if (status == RAT_OK && options->s3.session_token != NULL)
        status = rat_http_request_header(request, "x-amz-security-token: %s", options->s3.session_token);
    if (status == RAT_OK)
        status = rat_target_headers(options, true, request);
    if (status != RAT_OK)
        return status;
    char host[520];
    host_header(place, host, sizeof host);
    const char *signed_headers[RAT_HTTP_HEADERS_MAX + 1] = {host};
    memcpy(signed_headers + 1, request->headers, request->header_count * sizeof *signed_headers);
    const struct rat_sigv4_request to_sign = {
        .method = "PUT",
        .path = place->path,
        .query = "",
        .headers = signed_headers,
        .header_count = request->header_count + 1,
        .payload_hash = parcel->sha256_hex,
    };
    struct rat_buffer authorization;
    rat_buffer_init(&authorization, 4096);
    status = rat_sigv4_authorization(&signer, &to_sign, &authorization);
    if (status == RAT_OK)
        status = rat_http_request_header(request, "Authorization: %s", (const char *)authorization.bytes);
    rat_buffer_free(&authorization);
    return status;
}

static enum rat_status make_request(const struct rat_target *target, const struct rat_parcel *parcel, unsigned step,
                                    struct rat_http_request *request)
{
    const struct rat_target_options *options = &((const struct s3_target *)target)->options;
    if (step > (options->finalize_url != NULL ? 1u : 0u))
        return RAT_END;
    rat_http_request_init(request, "PUT");
    struct place place;
    enum rat_status status = locate(options, parcel, &place);
    if (status != RAT_OK)
        return status;
    if (step == 1)
        return rat_target_finalize(options, parcel, place.object, place.url, request);
    snprintf(request->url, sizeof request->url, "%s", place.url);
    request->fd = parcel->fd;
    request->length = parcel->bytes;
    status = rat_target_describe(parcel, request);
    return status == RAT_OK ? sign(options, &place, parcel, request) : status;
}

static void free_target(struct rat_target *target)
{
    free(target);
}

enum rat_status rat_s3_target_new(const struct rat_target_options *options, struct rat_target **out)
{
    struct s3_target *made = malloc(sizeof *made);
    if (made == NULL)
        return RAT_NO_MEMORY;
    *made = (struct s3_target){.target = {.request = make_request, .free = free_target}, .options = *options};
    *out = &made->target;
    return RAT_OK;
}
