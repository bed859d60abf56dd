#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deliver/http.h"

void rat_http_request_init(struct rat_http_request *request, const char *method)
{
    memset(request, 0, sizeof *request);
    snprintf(request->method, sizeof request->method, "%s", method);
    request->fd = -1;
}

enum rat_status rat_http_request_header(struct rat_http_request *request, const char *format, ...)
{
    if (request->header_count == RAT_HTTP_HEADERS_MAX)
        return RAT_TOO_BIG;
    char *line;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&line, format, arguments);
    va_end(arguments);
    if (length < 0)
        return RAT_NO_MEMORY;
    if (strpbrk(line, "\r\n") != NULL) {
        free(line);
        return RAT_INVALID;
    }
    request->headers[request->header_count++] = line;
    return RAT_OK;
}

static void free_secretly(char *text)
{
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    free(text);
}

void rat_http_request_free(struct rat_http_request *request)
{
    for (size_t i = 0; i < request->header_count; i++)
        free_secretly(request->headers[i]);
    request->header_count = 0;
    free(request->body);
    request->body = NULL;
}

const char *rat_http_failure_name(enum rat_http_failure failure)
{
    static const char *const names[] = {
#define NAME(code, name) [RAT_HTTP_##code] = name,
        RAT_HTTP_FAILURE_LIST(NAME)
#undef NAME
    };
    return (unsigned)failure < RAT_HTTP_FAILURES ? names[failure] : "unknown";
}

/* The replacement is not longer than a secret may be: shorter ones are none. */
void rat_http_scrub(const char *const *secrets, char *text)
{
    static const char mask[] = "[secret]";
    for (size_t i = 0; i < RAT_HTTP_SECRETS_MAX && secrets[i] != NULL; i++) {
        size_t length = strlen(secrets[i]);
        for (char *at = text; length > 0 && (at = strstr(at, secrets[i])) != NULL;) {
            size_t shown = length < sizeof mask - 1 ? length : sizeof mask - 1;
            memcpy(at, mask, shown);
            memmove(at + shown, at + length, strlen(at + length) + 1);
            at += shown;
        }
    }
}

void rat_http_show_url(const char *url, char *out, size_t length)
{
    const char *host = strstr(url, "://");
    host = host != NULL ? host + 3 : url;
    size_t authority = strcspn(host, "/?#");
    const char *user = memrchr(host, '@', authority);
    const char *shown = user != NULL ? user + 1 : host;
    snprintf(out, length, "%.*s%.*s", (int)(host - url), url, (int)strcspn(shown, "?#"), shown);
}
