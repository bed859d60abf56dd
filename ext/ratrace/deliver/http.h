/* http.h - one HTTP request at a time, over libcurl, for a thread that must be able to stop at any moment.
 *
 * TLS. Always verified, host name and chain, from TLS 1.2 up; `ca_file` replaces the system's CA bundle.
 * Redirects are never followed: a credential must not travel to where a reply points. A 3xx is a failure that names the
 * place, so that somebody can configure it.
 * Time. Connecting, the whole, and a stall (less than 1 KiB/s) each have a limit; a request also ends when `wake` is
 * readable and `stop_at` says that the time is over.
 * Bounds. Of a reply, 4 KiB are kept and 1 MiB is read.
 * Environment. Nothing is read from it here: another thread may be changing it. The proxy is given.
 * Addresses. What was looked up stays in use until a connection fails: so hardly ever is a look-up under way when the
 * host forks, and then the fork gate keeps the resolver's locks from the child.
 * Descriptors. No program that the host starts inherits one of ours or of libcurl's.
 * Secrets. No text that leaves this module holds one of `secrets`, nor the user or query of a URL.
 *
 * Memory:  between requests a client holds one idle connection; rat_http_rest closes it.
 * Threads: one, with SIGPIPE blocked.
 * Fork:    the child calls rat_http_in_child, which closes the inherited sockets and touches nothing of libcurl.
 */
#ifndef RAT_DELIVER_HTTP_H
#define RAT_DELIVER_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/handle.h"
#include "base/status.h"
#include "deliver/retry.h"

#define RAT_HTTP_HEADERS_MAX 48
#define RAT_HTTP_URL_MAX 4096
#define RAT_HTTP_SECRETS_MAX 24
#define RAT_HTTP_TEXT_MAX 400

struct rat_http_request {
    char method[8];             /* "PUT" or "POST" */
    char url[RAT_HTTP_URL_MAX];
    char *headers[RAT_HTTP_HEADERS_MAX]; /* "Name: value", owned */
    size_t header_count;
    int fd;                     /* the body is this file's first `length` bytes ... */
    const struct rat_handle *file; /* ... as long as `fd` is this; NULL = it is the caller's for certain */
    char *body;                 /* ... or these, owned, where it is not NULL */
    uint64_t length;
};

void rat_http_request_init(struct rat_http_request *request, const char *method);
/* RAT_NO_MEMORY, RAT_TOO_BIG, RAT_INVALID for a line break in it. */
RAT_MUST_CHECK enum rat_status rat_http_request_header(struct rat_http_request *request, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void rat_http_request_free(struct rat_http_request *request);

/* code, name */
#define RAT_HTTP_FAILURE_LIST(X)                                                                   \
    X(NONE, "none")         /* there is an HTTP status */                                          \
    X(RESOLVE, "resolve")   /* no address for the host or the proxy */                             \
    X(CONNECT, "connect")   /* refused, unreachable */                                             \
    X(TLS, "tls")           /* handshake or certificate */                                         \
    X(TIMEOUT, "timeout")                                                                          \
    X(BROKEN, "broken")     /* the connection ended early, or what came was no HTTP */             \
    X(STOPPED, "stopped")   /* by us */                                                            \
    X(LOCAL, "local")       /* our file, our memory */

enum rat_http_failure {
#define RAT_HTTP_FAILURE_CODE(code, name) RAT_HTTP_##code,
    RAT_HTTP_FAILURE_LIST(RAT_HTTP_FAILURE_CODE)
#undef RAT_HTTP_FAILURE_CODE
    RAT_HTTP_FAILURES
};
const char *rat_http_failure_name(enum rat_http_failure failure);

struct rat_http_reply {
    unsigned status; /* 0 = none came */
    enum rat_http_failure failure;
    bool reached;    /* the request went out, wholly or in part */
    bool has_retry_after;
    uint64_t retry_after_s;
    char text[RAT_HTTP_TEXT_MAX]; /* one line for a person: what went wrong, without secrets */
};

struct rat_http_options {
    const char *ca_file;  /* NULL = the system's */
    const char *proxy;    /* NULL = none */
    const char *no_proxy; /* hosts, as in the variable of that name; NULL = none */
    uint64_t connect_ns, total_ns, stall_ns;
    const char *secrets[RAT_HTTP_SECRETS_MAX]; /* NULL-terminated unless full */
    const struct rat_handle *wake; /* becomes readable when `stop_at` was set; NULL = none */
    const _Atomic uint64_t *stop_at; /* CLOCK_MONOTONIC ns at which to give up; 0 = never; NULL = never */
};

struct rat_http;

/* The options' strings stay the caller's and must outlive the client. rat_curl_load first. */
RAT_MUST_CHECK enum rat_status rat_http_new(const struct rat_http_options *options, struct rat_http **out);
void rat_http_free(struct rat_http *http);
void rat_http_in_child(struct rat_http *http);

/* Send, and wait for the answer. */
void rat_http_send(struct rat_http *http, const struct rat_http_request *request, struct rat_http_reply *reply);

/* Nothing to send for a while: close what is open. */
void rat_http_rest(struct rat_http *http);

/* Replace every secret in `text` by [secret]. */
void rat_http_scrub(const char *const *secrets, char *text);

/* scheme://host/path of a URL, without user, query and fragment. */
void rat_http_show_url(const char *url, char *out, size_t length);

#endif
