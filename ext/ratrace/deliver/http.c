/* http.c - the libcurl side of http.h.
 *
 * The multi interface, because only that waits on a descriptor of ours as well: a stop is met at once, not at libcurl's
 * next progress call. The easy handle keeps its connection between two requests of a round; the share keeps the
 * addresses for the client's life and is thrown away when a connection fails.
 *
 * Descriptors are noted when libcurl opens them, so that a forked child can close them without libcurl; those it opens
 * for itself are found (curl_pair.h). QUICK_EXIT lets a look-up that hangs be left behind instead of waited for.
 */
#include "deliver/http.h"

#include "deliver/curl_library.h"
#include "deliver/curl_pair.h"
#include "deliver/fork_gate.h"

#ifdef RAT_HAS_CURL

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/testpoint.h"

#define SOCKETS_MAX 16
#define KEPT_MAX 4096
#define READ_MAX (UINT64_C(1) << 20)
#define EXPECT_MIN (UINT64_C(1) << 20) /* a larger body waits up to a second for the server's consent */
#define MS UINT64_C(1000000)

struct rat_http {
    struct rat_http_options options;
    CURLM *multi;
    CURL *easy;
    CURLSH *addresses;
    struct rat_handle sockets[SOCKETS_MAX];
    int pair[2];                      /* of the multi handle; -1 = none that is known */
    bool tells_of_closing;            /* libcurl, of each socket */
    char error[CURL_ERROR_SIZE];
    /* of the request under way */
    const struct rat_http_request *request;
    uint64_t sent, received;
    size_t kept;
    char body[KEPT_MAX + 1];
    char location[512];
    bool has_retry_after;
    uint64_t retry_after_s;
    bool looks_up, pair_is_marked;
};

/* ---------------------------------------------------------------- called by libcurl */

/* We are their only writer in this process. */
static struct rat_handle *find(struct rat_http *http, int fd)
{
    for (int i = 0; i < SOCKETS_MAX; i++)
        if (atomic_load_explicit(&http->sockets[i].fd, memory_order_relaxed) == fd)
            return &http->sockets[i];
    return NULL;
}

/* libcurl 7.88 closes a socket that was never connected without telling: such are forgotten here, because `fd`
 * may be one's number. */
static void note(struct rat_http *http, int fd)
{
    for (int i = 0; i < SOCKETS_MAX; i++)
        if (rat_handle_fd(&http->sockets[i]) < 0)
            atomic_store_explicit(&http->sockets[i].fd, -1, memory_order_relaxed);
    struct rat_handle *free = find(http, -1);
    if (fd >= 0 && free != NULL)
        rat_handle_hold(free, fd);
}

static void forget(struct rat_http *http, int fd)
{
    struct rat_handle *noted = fd >= 0 ? find(http, fd) : NULL;
    if (noted != NULL)
        atomic_store_explicit(&noted->fd, -1, memory_order_relaxed);
}

static void end_look_up(struct rat_http *http)
{
    if (http->looks_up)
        rat_fork_gate_lookup_end();
    http->looks_up = false;
}

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct rat_http *http = user;
    (void)purpose;
    end_look_up(http);
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    note(http, fd);
    return fd >= 0 ? fd : CURL_SOCKET_BAD;
}

static int close_socket(void *user, curl_socket_t fd)
{
    struct rat_handle *noted = find(user, fd);
    if (noted == NULL)
        return close(fd);
    rat_handle_close(noted);
    return 0;
}

/* Of a numeric address, too: that ends at once. */
static int begin_look_up(void *state, void *nothing, void *user)
{
    struct rat_http *http = user;
    (void)state, (void)nothing;
    http->looks_up = true;
    http->pair_is_marked = false;
    rat_fork_gate_lookup_begin();
    return 0;
}

static size_t read_body(char *to, size_t size, size_t count, void *user)
{
    struct rat_http *http = user;
    const struct rat_http_request *request = http->request;
    if (http->sent > 0 && http->sent < request->length)
        RAT_TEST_POINT("http.sending");
    uint64_t left = request->length - http->sent;
    size_t want = size * count < left ? size * count : (size_t)left;
    ssize_t got;
    if (request->body != NULL) {
        memcpy(to, request->body + http->sent, want);
        got = (ssize_t)want;
    } else {
        if (request->file != NULL && rat_handle_fd(request->file) != request->fd)
            return CURL_READFUNC_ABORT; /* the host closed it, and what is there now is nobody's to send */
        do
            got = pread(request->fd, to, want, (off_t)http->sent);
        while (got < 0 && errno == EINTR);
        if (got < 0 || (got == 0 && want > 0))
            return CURL_READFUNC_ABORT; /* the file is shorter than it was */
    }
    http->sent += (uint64_t)got;
    return (size_t)got;
}

/* libcurl begins anew when a kept connection turns out to be dead. */
static int rewind_body(void *user, curl_off_t offset, int origin)
{
    struct rat_http *http = user;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > http->request->length)
        return CURL_SEEKFUNC_CANTSEEK;
    http->sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static size_t keep_reply(char *bytes, size_t size, size_t count, void *user)
{
    struct rat_http *http = user;
    size_t length = size * count, room = KEPT_MAX - http->kept, here = length < room ? length : room;
    memcpy(http->body + http->kept, bytes, here);
    http->kept += here;
    http->received += length;
    return http->received <= READ_MAX ? length : 0;
}

static bool is_header(const char *line, size_t length, const char *name, const char **value, size_t *value_length)
{
    size_t n = strlen(name);
    if (length <= n || strncasecmp(line, name, n) != 0 || line[n] != ':')
        return false;
    *value = line + n + 1;
    *value_length = length - n - 1;
    while (*value_length > 0 && isspace((unsigned char)**value))
        ++*value, --*value_length;
    while (*value_length > 0 && isspace((unsigned char)(*value)[*value_length - 1]))
        --*value_length;
    return true;
}

static size_t look_at_header(char *line, size_t size, size_t count, void *user)
{
    struct rat_http *http = user;
    size_t length = size * count, value_length;
    const char *value;
    if (is_header(line, length, "Retry-After", &value, &value_length))
        http->has_retry_after = rat_retry_after(value, value_length, time(NULL), &http->retry_after_s);
    else if (is_header(line, length, "Location", &value, &value_length))
        snprintf(http->location, sizeof http->location, "%.*s", (int)(value_length < 500 ? value_length : 500), value);
    return length;
}

/* ---------------------------------------------------------------- life */

#define SET(option, value) ((void)rat_curl.easy_setopt(easy, option, value))

static long milliseconds(uint64_t ns)
{
    return ns / MS > 1 ? (long)(ns / MS) : 1;
}

static void open_multi(struct rat_http *http)
{
    int from = rat_curl_pair_lowest();
    http->tells_of_closing = rat_curl.version_info(CURLVERSION_NOW)->version_num >= 0x080b00;
    http->multi = rat_curl.multi_init();
    if (http->multi == NULL || !rat_curl_pair_of_multi(http->multi, from, http->pair))
        return;
    note(http, http->pair[0]);
    note(http, http->pair[1]);
}

static bool open_handles(struct rat_http *http)
{
    if (http->addresses == NULL) {
        http->addresses = rat_curl.share_init();
        if (http->addresses != NULL)
            (void)rat_curl.share_setopt(http->addresses, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
    }
    if (http->multi == NULL)
        open_multi(http);
    if (http->easy != NULL || http->multi == NULL)
        return http->easy != NULL;
    CURL *easy = http->easy = rat_curl.easy_init();
    if (easy == NULL)
        return false;
    const struct rat_http_options *options = &http->options;
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_ERRORBUFFER, http->error);
    SET(CURLOPT_SHARE, http->addresses);
    SET(CURLOPT_DNS_CACHE_TIMEOUT, -1L);
    SET(CURLOPT_PROXY, options->proxy != NULL ? options->proxy : ""); /* "": not from the environment either */
    SET(CURLOPT_NOPROXY, options->no_proxy != NULL ? options->no_proxy : "");
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (options->ca_file != NULL)
        SET(CURLOPT_CAINFO, options->ca_file);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PATH_AS_IS, 1L); /* what was signed is what is sent */
    SET(CURLOPT_CONNECTTIMEOUT_MS, milliseconds(options->connect_ns));
    SET(CURLOPT_TIMEOUT_MS, milliseconds(options->total_ns));
    SET(CURLOPT_LOW_SPEED_LIMIT, 1024L);
    SET(CURLOPT_LOW_SPEED_TIME, options->stall_ns >= 1000 * MS ? (long)(options->stall_ns / (1000 * MS)) : 1L);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, http);
    SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    SET(CURLOPT_CLOSESOCKETDATA, http);
    SET(CURLOPT_READFUNCTION, read_body);
    SET(CURLOPT_READDATA, http);
    SET(CURLOPT_SEEKFUNCTION, rewind_body);
    SET(CURLOPT_SEEKDATA, http);
    SET(CURLOPT_WRITEFUNCTION, keep_reply);
    SET(CURLOPT_WRITEDATA, http);
    SET(CURLOPT_HEADERFUNCTION, look_at_header);
    SET(CURLOPT_HEADERDATA, http);
#if LIBCURL_VERSION_NUM >= 0x073b00
    SET(CURLOPT_RESOLVER_START_FUNCTION, begin_look_up);
    SET(CURLOPT_RESOLVER_START_DATA, http);
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
    SET(CURLOPT_QUICK_EXIT, 1L);
#endif
    return true;
}

enum rat_status rat_http_new(const struct rat_http_options *options, struct rat_http **out)
{
    struct rat_http *http = calloc(1, sizeof *http);
    if (http == NULL)
        return RAT_NO_MEMORY;
    http->options = *options;
    http->pair[0] = http->pair[1] = -1;
    for (int i = 0; i < SOCKETS_MAX; i++)
        http->sockets[i] = RAT_HANDLE_NONE;
    *out = http;
    return RAT_OK;
}

/* Has the host closed what libcurl still believes to be its own? Whoever closes all closes the pair, too, which stays
 * open as long as the multi handle; a libcurl that has no pair, from 8.11 on, tells of every socket that it closes. */
static bool is_robbed(const struct rat_http *http)
{
    for (int i = 0; i < SOCKETS_MAX; i++) {
        int fd = atomic_load_explicit(&http->sockets[i].fd, memory_order_relaxed);
        bool counts = http->pair[0] < 0 ? http->tells_of_closing : fd == http->pair[0] || fd == http->pair[1];
        if (fd >= 0 && counts && rat_handle_fd(&http->sockets[i]) < 0)
            return true;
    }
    return false;
}

/* libcurl would write to and close numbers that may be the host's by now: its handles are left behind as they are. */
static void leave_behind(struct rat_http *http)
{
    rat_http_in_child(http);
    http->pair[0] = http->pair[1] = -1;
    http->easy = NULL;
    http->multi = NULL;
    http->addresses = NULL;
}

void rat_http_rest(struct rat_http *http)
{
    rat_fork_gate_enter();
    if (is_robbed(http))
        leave_behind(http);
    if (http->easy != NULL)
        rat_curl.easy_cleanup(http->easy);
    for (int i = 0; i < 2; i++) {
        forget(http, http->pair[i]); /* before it is closed: a child must not close what has its number then */
        http->pair[i] = -1;
    }
    if (http->multi != NULL)
        (void)rat_curl.multi_cleanup(http->multi);
    http->easy = NULL;
    http->multi = NULL;
    rat_fork_gate_leave();
}

static void forget_addresses(struct rat_http *http)
{
    rat_http_rest(http);
    if (http->addresses != NULL)
        (void)rat_curl.share_cleanup(http->addresses);
    http->addresses = NULL;
}

void rat_http_free(struct rat_http *http)
{
    if (http == NULL)
        return;
    forget_addresses(http);
    free(http);
}

void rat_http_in_child(struct rat_http *http)
{
    for (int i = 0; i < SOCKETS_MAX; i++)
        rat_handle_close(&http->sockets[i]);
}

/* ---------------------------------------------------------------- one request */

static enum rat_http_failure failure_of(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return RAT_HTTP_RESOLVE;
    case CURLE_COULDNT_CONNECT:
        return RAT_HTTP_CONNECT;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_USE_SSL_FAILED:
        return RAT_HTTP_TLS;
    case CURLE_OPERATION_TIMEDOUT:
        return RAT_HTTP_TIMEOUT;
    case CURLE_OUT_OF_MEMORY:
    case CURLE_ABORTED_BY_CALLBACK:
    case CURLE_READ_ERROR:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return RAT_HTTP_LOCAL;
    default:
        return RAT_HTTP_BROKEN;
    }
}

/* Anything may stand in a reply; a person gets one line of plain ASCII. */
static void describe(struct rat_http *http, CURLcode code, struct rat_http_reply *reply)
{
    http->body[http->kept] = '\0';
    if (memchr(http->body, '\0', http->kept) != NULL)
        http->kept = strlen(http->body);
    char text[KEPT_MAX + 1024], place[512];
    rat_http_show_url(http->location, place, sizeof place);
    if (reply->failure != RAT_HTTP_NONE)
        snprintf(text, sizeof text, "%s", http->error[0] != '\0' ? http->error : rat_curl.easy_strerror(code));
    else if (reply->status >= 300 && reply->status < 400 && place[0] != '\0')
        snprintf(text, sizeof text, "HTTP %u: it redirects to %s; give that address if it is right", reply->status,
                 place);
    else
        snprintf(text, sizeof text, "HTTP %u%s%s", reply->status, http->kept > 0 ? ": " : "", http->body);
    rat_http_scrub(http->options.secrets, text);
    size_t to = 0;
    for (const unsigned char *from = (const unsigned char *)text; *from != '\0' && to < sizeof reply->text - 1; from++) {
        if (*from > ' ' && *from != 0x7F)
            reply->text[to++] = *from < 0x80 ? (char)*from : '?';
        else if (to > 0 && reply->text[to - 1] != ' ')
            reply->text[to++] = ' ';
    }
    to -= to > 0 && reply->text[to - 1] == ' '; /* of a body that ends its line */
    reply->text[to] = '\0';
}

static bool add_line(struct curl_slist **lines, const char *line)
{
    struct curl_slist *longer = rat_curl.slist_append(*lines, line);
    *lines = longer != NULL ? longer : *lines;
    return longer != NULL;
}

static bool prepare(struct rat_http *http, const struct rat_http_request *request, struct curl_slist **lines)
{
    CURL *easy = http->easy;
    bool whole = request->length > EXPECT_MIN || add_line(lines, "Expect:");
    for (size_t i = 0; i < request->header_count; i++)
        whole = whole && add_line(lines, request->headers[i]);
    http->request = request;
    http->sent = http->received = 0;
    http->kept = 0;
    http->error[0] = http->location[0] = '\0';
    http->has_retry_after = false;
    SET(CURLOPT_URL, request->url);
    SET(CURLOPT_HTTPHEADER, *lines);
    SET(CURLOPT_UPLOAD, 1L);
    SET(CURLOPT_CUSTOMREQUEST, request->method);
    SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->length);
    return whole;
}

/* How long to wait at most, in ms; 0: the time is over. */
static int time_left(const struct rat_http *http)
{
    uint64_t stop_at = http->options.stop_at == NULL
        ? 0 : atomic_load_explicit(http->options.stop_at, memory_order_acquire); /* set before wake is readable */
    if (stop_at == 0)
        return 1000;
    uint64_t now = rat_clock_ns(CLOCK_MONOTONIC);
    if (now >= stop_at)
        return 0;
    return stop_at - now < 1000 * MS ? (int)((stop_at - now) / MS) + 1 : 1000;
}

/* CURLE_OK with `*stopped` when we gave up. */
static CURLcode run(struct rat_http *http, bool *stopped)
{
    CURLcode code = CURLE_FAILED_INIT;
    bool woken = false;
    for (;;) {
        int running = 0, left;
        if (is_robbed(http))
            return CURLE_RECV_ERROR;
        if (rat_curl.multi_perform(http->multi, &running) != CURLM_OK)
            return CURLE_OUT_OF_MEMORY;
        if (running == 0)
            break;
        int wait = time_left(http);
        if (wait == 0) {
            *stopped = true;
            return CURLE_OK;
        }
        struct curl_waitfd wake = {.fd = -1, .events = CURL_WAIT_POLLIN};
        if (http->options.wake != NULL)
            wake.fd = rat_handle_fd(http->options.wake);
        bool deaf = woken || (http->options.wake != NULL && wake.fd < 0), listens = !deaf && wake.fd >= 0;
        if (http->looks_up && !http->pair_is_marked) {
            rat_curl_pair_of_look_up(http->multi);
            http->pair_is_marked = true;
        }
        rat_fork_gate_leave(); /* multi_wait only polls */
        RAT_TEST_POINT(http->looks_up ? "http.resolving" : "http.waiting");
        CURLMcode waited;
        do /* a look-up's thread is joined in multi_perform: a fork that waits for that lets us in */
            waited = rat_curl.multi_wait(http->multi, &wake, listens ? 1 : 0, deaf && wait > 20 ? 20 : wait, &left);
        while (http->looks_up && !rat_fork_gate_try_for_lookup());
        if (!http->looks_up)
            rat_fork_gate_enter();
        if (waited != CURLM_OK)
            return CURLE_OUT_OF_MEMORY;
        woken = woken || wake.revents != 0; /* it stays readable until its owner looks */
    }
    int messages;
    for (CURLMsg *message; (message = rat_curl.multi_info_read(http->multi, &messages)) != NULL;)
        if (message->msg == CURLMSG_DONE)
            code = message->data.result;
    if (code != CURLE_OPERATION_TIMEDOUT)
        end_look_up(http);
    return code;
}

static void finish(struct rat_http *http, CURLcode code, bool stopped, struct rat_http_reply *reply)
{
    long status = 0;
    (void)rat_curl.easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
    reply->status = (unsigned)status;
    reply->reached = http->sent > 0 || status != 0;
    reply->has_retry_after = http->has_retry_after;
    reply->retry_after_s = http->retry_after_s;
    if (stopped) {
        reply->failure = RAT_HTTP_STOPPED;
        snprintf(reply->text, sizeof reply->text, "stopped before the answer came");
        return;
    }
    /* An endless reply is as good as its status. */
    bool answered = code == CURLE_OK || (code == CURLE_WRITE_ERROR && status >= 200);
    reply->failure = answered ? RAT_HTTP_NONE : failure_of(code);
    describe(http, code, reply);
}

void rat_http_send(struct rat_http *http, const struct rat_http_request *request, struct rat_http_reply *reply)
{
    memset(reply, 0, sizeof *reply);
    struct curl_slist *lines = NULL;
    bool stopped = false;
    rat_fork_gate_enter();
    if (!open_handles(http) || !prepare(http, request, &lines) ||
        rat_curl.multi_add_handle(http->multi, http->easy) != CURLM_OK) {
        reply->failure = RAT_HTTP_LOCAL;
        snprintf(reply->text, sizeof reply->text, "out of memory");
    } else {
        CURLcode code = run(http, &stopped);
        finish(http, code, stopped, reply);
        if (is_robbed(http))
            leave_behind(http);
        else
            (void)rat_curl.multi_remove_handle(http->multi, http->easy);
    }
    if (http->easy != NULL)
        (void)rat_curl.easy_setopt(http->easy, CURLOPT_HTTPHEADER, NULL);
    rat_curl.slist_free_all(lines);
    http->request = NULL;
    http->looks_up = false; /* one that is left behind grows old by itself */
    if (reply->failure != RAT_HTTP_NONE && !reply->reached)
        forget_addresses(http);
    else if (reply->failure != RAT_HTTP_NONE)
        rat_http_rest(http);
    rat_fork_gate_leave();
}

#else /* built without libcurl: rat_curl_load has refused before anything of this is called */

enum rat_status rat_http_new(const struct rat_http_options *options, struct rat_http **out)
{
    (void)options, (void)out;
    return RAT_UNSUPPORTED;
}

void rat_http_free(struct rat_http *http)
{
    (void)http;
}

void rat_http_in_child(struct rat_http *http)
{
    (void)http;
}

void rat_http_send(struct rat_http *http, const struct rat_http_request *request, struct rat_http_reply *reply)
{
    (void)http, (void)request, (void)reply;
}

void rat_http_rest(struct rat_http *http)
{
    (void)http;
}

#endif
