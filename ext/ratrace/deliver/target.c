#include "deliver/target.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ADDRESS "http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH"

static __attribute__((format(printf, 3, 4))) enum rat_status refuse(char *why, size_t length, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, length, format, arguments);
    va_end(arguments);
    return RAT_INVALID;
}

/* ---------------------------------------------------------------- checks */

static bool is_plain(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++)
        if (*p <= ' ' || *p == 0x7F)
            return false;
    return true;
}

/* After the host comes a port, or none, and then the path. */
static bool has_sound_port(const char *host)
{
    const char *end = host + strcspn(host, host[0] == '[' ? "]/?#" : ":/?#");
    if (host[0] == '[' && *end++ != ']')
        return false;
    size_t digits = *end == ':' ? strspn(end + 1, "0123456789") : 0;
    if (*end == ':' && (digits < 1 || digits > 5 || strtoul(end + 1, NULL, 10) - 1 >= 65535))
        return false;
    end += *end == ':' ? digits + 1 : 0;
    return *end == '\0' || strchr("/?#", *end) != NULL;
}

static enum rat_status check_url(const char *name, const char *url, const char *allowed, char *why, size_t length)
{
    char shown[512];
    rat_http_show_url(url, shown, sizeof shown);
    const char *host = strncasecmp(url, "https://", 8) == 0 ? url + 8 : strncasecmp(url, "http://", 7) == 0 ? url + 7 : "";
    if (!is_plain(url) || host[0] == '\0' || strchr("/?#:@", host[0]) != NULL)
        return refuse(why, length, "%s: %s is not allowed; use %s", name, shown, allowed);
    if (memchr(host, '@', strcspn(host, "/?#")) != NULL)
        return refuse(why, length, "%s: %s must not carry a user or password; use a token or a header", name, shown);
    if (!has_sound_port(host))
        return refuse(why, length, "%s: %s is not allowed; use %s, with a port between 1 and 65535", name, shown,
                      allowed);
    if (strchr(url, '#') != NULL || strlen(url) > RAT_HTTP_URL_MAX / 2)
        return refuse(why, length, "%s: %s is not allowed; use an address of at most %d bytes without a fragment", name,
                      shown, RAT_HTTP_URL_MAX / 2);
    return RAT_OK;
}

/* Plain HTTP to another machine. */
static bool is_open_to_all(const char *url)
{
    if (strncasecmp(url, "http://", 7) != 0)
        return false;
    const char *host = url + 7;
    size_t length = host[0] == '[' ? strcspn(host, "/?") : strcspn(host, ":/?");
    bool local = (length == 9 && strncasecmp(host, "localhost", 9) == 0) || strncmp(host, "[::1]", 5) == 0 ||
        (strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == length);
    return !local;
}

/* The value may be a secret: only the name is told. */
static enum rat_status check_header(const char *header, char *why, size_t length)
{
    static const char *const ours[] = {"Idempotency-Key", "Content-Length", "Content-Type", "Content-Digest", "Host",
                                       "Transfer-Encoding", "Ratrace-Segment", "x-amz-date", "x-amz-content-sha256",
                                       "x-amz-security-token"};
    size_t name = strcspn(header, ":");
    int shown = name < 60 ? (int)name : 60;
    for (size_t i = 0; i < name; i++)
        if (!isalnum((unsigned char)header[i]) && strchr("!#$%&'*+-.^_`|~", header[i]) == NULL)
            name = 0; /* no token */
    if (name == 0 || header[name] != ':' || strpbrk(header, "\r\n") != NULL)
        return refuse(why, length, "headers: one is not of the form \"Name: value\"");
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strlen(ours[i]) == name && strncasecmp(header, ours[i], name) == 0)
            return refuse(why, length, "headers: %.*s is set by ratrace itself", shown, header);
    return RAT_OK;
}

static enum rat_status check_s3(const struct rat_target_options *options, char *why, size_t length)
{
    const char *bucket = options->s3.bucket;
    if (strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789.-_ABCDEFGHIJKLMNOPQRSTUVWXYZ") != strlen(bucket) ||
        bucket[0] == '\0')
        return refuse(why, length, "s3 bucket: \"%s\" is not allowed; use letters, digits, dots and hyphens", bucket);
    if (options->s3.access_key_id == NULL || options->s3.secret_access_key == NULL ||
        options->s3.access_key_id[0] == '\0' || options->s3.secret_access_key[0] == '\0')
        return refuse(why, length, "s3: there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    if (!is_plain(options->s3.access_key_id) || (options->s3.region != NULL && !is_plain(options->s3.region)) ||
        (options->s3.session_token != NULL && !is_plain(options->s3.session_token)))
        return refuse(why, length, "s3: access key, session token and region must not have spaces in them");
    if (options->s3.prefix != NULL && strlen(options->s3.prefix) > 700)
        return refuse(why, length, "s3 prefix: is longer than 700 bytes");
    if (options->s3.endpoint == NULL)
        return RAT_OK;
    static const char allowed[] = "http(s)://HOST[:PORT] without a path";
    enum rat_status status = check_url("s3 endpoint", options->s3.endpoint, allowed, why, length);
    if (status != RAT_OK)
        return status;
    char shown[512];
    rat_http_show_url(options->s3.endpoint, shown, sizeof shown);
    const char *host = strstr(options->s3.endpoint, "://") + 3;
    if (host[strcspn(host, "/?")] != '\0' || strlen(host) > 300)
        return refuse(why, length, "s3 endpoint: %s is not allowed; use %s", shown, allowed);
    return RAT_OK;
}

enum rat_status rat_target_new(const struct rat_target_options *options, struct rat_target **out, char *why,
                               size_t why_length)
{
    bool s3 = options->s3.bucket != NULL;
    if (s3 == (options->url != NULL))
        return refuse(why, why_length, "url: give either an address or an S3 bucket");
    enum rat_status status = s3 ? check_s3(options, why, why_length)
                                : check_url("url", options->url, ADDRESS ", or s3://BUCKET/PREFIX", why, why_length);
    if (status == RAT_OK && options->finalize_url != NULL)
        status = check_url("finalize_url", options->finalize_url, ADDRESS, why, why_length);
    for (size_t i = 0; i < options->header_count && status == RAT_OK; i++)
        status = check_header(options->headers[i], why, why_length);
    if (status != RAT_OK)
        return status;
    if (options->token != NULL && (options->token[0] == '\0' || !is_plain(options->token)))
        return refuse(why, why_length, "token: is empty, or has spaces or line breaks in it");
    if (options->token != NULL && ((!s3 && is_open_to_all(options->url)) ||
                                   (options->finalize_url != NULL && is_open_to_all(options->finalize_url))))
        return refuse(why, why_length, "token: goes over https only, or to this machine; everybody on the way could "
                                       "read it");
    if (options->method != NULL && strcmp(options->method, "PUT") != 0 && strcmp(options->method, "POST") != 0)
        return refuse(why, why_length, "method: \"%.40s\" is not allowed; use PUT or POST", options->method);
    status = s3 ? rat_s3_target_new(options, out) : rat_http_target_new(options, out);
    if (status != RAT_OK)
        snprintf(why, why_length, "out of memory");
    return status;
}

/* ---------------------------------------------------------------- shared */

enum rat_status rat_target_describe(const struct rat_parcel *parcel, struct rat_http_request *request)
{
    char digest[48];
    rat_base64(parcel->sha256, sizeof parcel->sha256, digest);
    enum rat_status status = rat_http_request_header(request, "Idempotency-Key: %s", parcel->key);
    if (status == RAT_OK)
        status = rat_http_request_header(request, "Content-Type: application/octet-stream");
    if (status == RAT_OK)
        status = rat_http_request_header(request, "Content-Digest: sha-256=:%s:", digest);
    return status == RAT_OK ? rat_http_request_header(request, "Ratrace-Segment: %s", parcel->name) : status;
}

enum rat_status rat_target_headers(const struct rat_target_options *options, bool amz, struct rat_http_request *request)
{
    enum rat_status status = RAT_OK;
    if (!amz && options->token != NULL)
        status = rat_http_request_header(request, "Authorization: Bearer %s", options->token);
    for (size_t i = 0; i < options->header_count && status == RAT_OK; i++)
        if ((strncasecmp(options->headers[i], "x-amz-", 6) == 0) == amz)
            status = rat_http_request_header(request, "%s", options->headers[i]);
    return status;
}
