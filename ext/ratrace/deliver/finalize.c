/* finalize.c - the metadata of a delivered segment as JSON, and the POST that carries it (target.h). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/utc.h"
#include "deliver/target.h"

#define JSON_MAX (UINT32_C(64) << 10)

static __attribute__((format(printf, 2, 3))) enum rat_status put(struct rat_buffer *to, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return length >= 0 && (size_t)length < sizeof text ? rat_buffer_append(to, text, (size_t)length) : RAT_TOO_BIG;
}

/* Bytes of a valid UTF-8 character at `p`, or 0. */
static size_t utf8_length(const unsigned char *p)
{
    size_t length = *p < 0x80 ? 1 : *p >= 0xC2 && *p < 0xE0 ? 2 : *p >= 0xE0 && *p < 0xF0 ? 3
        : *p >= 0xF0 && *p < 0xF5 ? 4 : 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    if ((*p == 0xE0 && p[1] < 0xA0) || (*p == 0xED && p[1] > 0x9F) || (*p == 0xF0 && p[1] < 0x90) ||
        (*p == 0xF4 && p[1] > 0x8F))
        return 0; /* too long, a surrogate, or beyond U+10FFFF */
    return length;
}

/* "name":"text", whatever bytes the text has: what is no UTF-8 becomes U+FFFD. */
static enum rat_status put_text(struct rat_buffer *to, const char *name, const char *text)
{
    enum rat_status status = put(to, ",\"%s\":\"", name);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0' && status == RAT_OK;) {
        size_t length = utf8_length(p);
        if (length == 0)
            status = put(to, "\\ufffd");
        else if (*p < 0x20 || *p == 0x7F)
            status = put(to, "\\u%04x", *p);
        else
            status = put(to, *p == '"' || *p == '\\' ? "\\%.*s" : "%.*s", (int)length, (const char *)p);
        p += length == 0 ? 1 : length;
    }
    return status == RAT_OK ? put(to, "\"") : status;
}

/* RFC 3339 with nanoseconds. */
static enum rat_status put_time(struct rat_buffer *to, const char *name, uint64_t ns)
{
    struct rat_utc utc;
    if (!rat_utc_of(ns / 1000000000, &utc))
        return RAT_CORRUPT;
    return put(to, ",\"%s\":\"%04u-%02u-%02uT%02u:%02u:%02u.%09uZ\"", name, utc.year, utc.month, utc.day, utc.hour,
               utc.minute, utc.second, (unsigned)(ns % 1000000000));
}

static enum rat_status put_json(struct rat_buffer *to, const struct rat_parcel *parcel, const char *object,
                                const char *url)
{
    enum rat_status status = put(to, "{\"session\":\"%.32s\",\"segment\":%u,\"pid\":%u,\"events\":%llu,\"bytes\":%llu",
                                 parcel->key, parcel->segment, parcel->pid, (unsigned long long)parcel->events,
                                 (unsigned long long)parcel->bytes);
    const char *const texts[][2] = {{"name", parcel->name},  {"object", object},
                                    {"url", url},            {"service", parcel->service},
                                    {"host", parcel->host},  {"sha256", parcel->sha256_hex}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts && status == RAT_OK; i++)
        if (texts[i][1] != NULL)
            status = put_text(to, texts[i][0], texts[i][1]);
    if (status == RAT_OK)
        status = put_time(to, "start", parcel->start_ns);
    if (status == RAT_OK)
        status = put_time(to, "end", parcel->end_ns);
    if (status == RAT_OK && parcel->damaged)
        status = put(to, ",\"damaged\":true");
    return status == RAT_OK ? put(to, "}\n") : status;
}

enum rat_status rat_target_finalize(const struct rat_target_options *options, const struct rat_parcel *parcel,
                                    const char *object, const char *url, struct rat_http_request *request)
{
    char shown[RAT_HTTP_URL_MAX];
    rat_http_show_url(url, shown, sizeof shown); /* a query may be a credential */
    snprintf(request->url, sizeof request->url, "%s", options->finalize_url);
    snprintf(request->method, sizeof request->method, "POST");
    struct rat_buffer json;
    rat_buffer_init(&json, JSON_MAX);
    enum rat_status status = put_json(&json, parcel, object, shown);
    request->body = (char *)json.bytes; /* the request's now */
    request->length = json.length;
    if (status == RAT_OK)
        status = rat_http_request_header(request, "Idempotency-Key: %s", parcel->key);
    if (status == RAT_OK)
        status = rat_http_request_header(request, "Content-Type: application/json");
    return status == RAT_OK ? rat_target_headers(options, false, request) : status;
}
