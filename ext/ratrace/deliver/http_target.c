/* http_target.c - the segment itself, to an HTTP server: PUT to URL/NAME, or POST to URL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "deliver/sigv4.h"
#include "deliver/target.h"

struct http_target {
    struct rat_target target;
    struct rat_target_options options;
};

/* A PUT names what it stores, so the segment's name goes between the path and a query. */
static enum rat_status address(const struct rat_target_options *options, const struct rat_parcel *parcel, char *out,
                               size_t length)
{
    if (options->method != NULL && strcmp(options->method, "POST") == 0) {
        snprintf(out, length, "%s", options->url);
        return RAT_OK;
    }
    struct rat_buffer name;
    rat_buffer_init(&name, RAT_HTTP_URL_MAX);
    enum rat_status status = rat_sigv4_encode_path(parcel->name, &name);
    size_t path = strcspn(options->url, "?");
    bool slash = path > 0 && options->url[path - 1] == '/';
    if (status == RAT_OK &&
        (size_t)snprintf(out, length, "%.*s%s%.*s%s", (int)path, options->url, slash ? "" : "/", (int)name.length,
                         (const char *)name.bytes, options->url + path) >= length)
        status = RAT_TOO_BIG;
    rat_buffer_free(&name);
    return status;
}

static enum rat_status make_request(const struct rat_target *target, const struct rat_parcel *parcel, unsigned step,
                                    struct rat_http_request *request)
{
    const struct rat_target_options *options = &((const struct http_target *)target)->options;
    if (step > (options->finalize_url != NULL ? 1u : 0u))
        return RAT_END;
    rat_http_request_init(request, options->method != NULL ? options->method : "PUT");
    enum rat_status status = address(options, parcel, request->url, sizeof request->url);
    if (status != RAT_OK)
        return status;
    if (step == 1) {
        char url[RAT_HTTP_URL_MAX];
        memcpy(url, request->url, sizeof url);
        return rat_target_finalize(options, parcel, NULL, url, request);
    }
    request->fd = parcel->fd;
    request->length = parcel->bytes;
    status = rat_target_describe(parcel, request);
    return status == RAT_OK ? rat_target_headers(options, false, request) : status;
}

static void free_target(struct rat_target *target)
{
    free(target);
}

enum rat_status rat_http_target_new(const struct rat_target_options *options, struct rat_target **out)
{
    struct http_target *made = malloc(sizeof *made);
    if (made == NULL)
        return RAT_NO_MEMORY;
    *made = (struct http_target){.target = {.request = make_request, .free = free_target}, .options = *options};
    *out = &made->target;
    return RAT_OK;
}
