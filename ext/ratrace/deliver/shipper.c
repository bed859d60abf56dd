#include "deliver/shipper.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/handle.h"
#include "base/testpoint.h"
#include "deliver/curl_library.h"
#include "deliver/fork_gate.h"
#include "deliver/recovery.h"
#include "deliver/serializer.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define POLL_NS SECOND
#define RECOVER_NS (10 * SECOND)
#define GRACE_NS (500 * MS)
#define DEAF_MS 50 /* between two looks for a stop where the host has closed the pipe */

struct rat_shipper {
    struct rat_ship_options options;
    struct rat_target *target;
    struct rat_http *http;
    struct rat_spool spool;
    pthread_t thread;
    struct rat_handle wake, waker; /* a pipe, readable once a stop was asked for */
    _Atomic uint64_t stop_at; /* CLOCK_MONOTONIC ns; 0 = nobody has asked */
    _Atomic uint32_t cancel;  /* 1 = break off what looks at no clock */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool has_ended;              /* lock */
    struct rat_ship_stats shown; /* lock */

    /* the thread's own */
    struct rat_delivery delivery;
    struct rat_spool_drops drops;
    uint64_t waiting, waiting_bytes;
    struct rat_recovery recovered;
    uint64_t recover_next_ns;
    bool told_drop;
};

static uint64_t now_ns(void)
{
    return rat_clock_ns(CLOCK_MONOTONIC);
}

static uint64_t scaled(const struct rat_shipper *s, uint64_t ns)
{
    return (uint64_t)((double)ns / s->options.time_scale);
}

static bool is_stopping(const struct rat_shipper *s)
{
    return atomic_load_explicit(&s->stop_at, memory_order_acquire) != 0;
}

static bool is_late(const struct rat_shipper *s)
{
    uint64_t stop_at = atomic_load_explicit(&s->stop_at, memory_order_acquire);
    return stop_at != 0 && now_ns() >= stop_at;
}

/* Until `until`, or a stop. */
static void wait_until(struct rat_shipper *s, uint64_t until)
{
    for (uint64_t now = now_ns(); now < until && !is_stopping(s); now = now_ns()) {
        struct pollfd wake = {.fd = rat_handle_fd(&s->wake), .events = POLLIN};
        uint64_t left = (until - now) / MS + 1, most = wake.fd >= 0 ? 60000 : DEAF_MS;
        if (poll(&wake, 1, (int)(left < most ? left : most)) < 0 && errno != EINTR)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

static void show(struct rat_shipper *s)
{
    uint64_t now = now_ns(), next = s->delivery.not_before_ns;
    pthread_mutex_lock(&s->lock);
    s->shown.delivery = s->delivery.counts;
    s->shown.drops = s->drops;
    s->shown.waiting = s->waiting;
    s->shown.waiting_bytes = s->waiting_bytes;
    s->shown.recovered_segments = s->recovered.segments;
    s->shown.recovered_events = s->recovered.events;
    s->shown.next_try_ns = next > now ? next - now : 0;
    pthread_mutex_unlock(&s->lock);
}

static void show_delivery(struct rat_delivery *delivery)
{
    show((struct rat_shipper *)(void *)((char *)delivery - offsetof(struct rat_shipper, delivery)));
}

/* ---------------------------------------------------------------- the directory */

/* What cannot be recovered cannot be recovered the next time either: it is told once. */
static void report_recovery(void *user, const char *line)
{
    const struct rat_shipper *s = user;
    if (s->recover_next_ns == 0 || strncmp(line, "cannot ", 7) != 0)
        rat_delivery_say(&s->delivery, false, "%s", line);
}

static void recover(struct rat_shipper *s)
{
    if (now_ns() < s->recover_next_ns)
        return;
    struct rat_recovery found;
    enum rat_status status = rat_recover_until(s->options.dir, s->options.live_dir, report_recovery, s, &s->cancel,
                                               &found);
    if (status != RAT_NOT_FOUND) {
        s->recovered.segments += found.segments;
        s->recovered.events += found.events;
    }
    s->recover_next_ns = now_ns() + scaled(s, RECOVER_NS);
}

static void retain(struct rat_shipper *s)
{
    uint64_t before = s->drops.waiting[0] + s->drops.waiting[1];
    int64_t now = (int64_t)rat_clock_ns(CLOCK_REALTIME);
    if (rat_spool_retain(&s->spool, &s->options.bounds, now, &s->drops) != RAT_OK)
        return; /* the directory is not there, or listing it failed: next time */
    uint64_t dropped = s->drops.waiting[0] + s->drops.waiting[1] - before;
    if (dropped == 0)
        return;
    rat_delivery_say(&s->delivery, !s->told_drop, "%s exceeds its bounds: %" PRIu64 " of the oldest segments dropped%s",
                     s->options.dir, dropped, s->told_drop ? "" : "; stats count those to come");
    s->told_drop = true;
}

/* Look at the directory, deliver until something fails. True: there may be more at once. */
static bool deliver(struct rat_shipper *s, bool last)
{
    struct rat_spool_list list;
    enum rat_status status = rat_spool_list(&s->spool, &list);
    s->waiting = list.count;
    s->waiting_bytes = list.bytes;
    show(s);
    bool ready = status == RAT_OK && s->options.has_target && (last || now_ns() >= s->delivery.not_before_ns);
    bool any = false;
    size_t first = rat_delivery_first(&s->delivery, &list);
    if (first == 0)
        s->delivery.cursor[0] = '\0';
    for (size_t i = first; ready && i < list.count && !is_late(s) && (last || !is_stopping(s)); i++) {
        const struct rat_spool_entry *entry = &list.entries[i];
        enum rat_delivery_result result = rat_delivery_try(&s->delivery, entry);
        if (result == RAT_DELIVERY_DONE) {
            s->waiting--;
            s->waiting_bytes -= entry->bytes;
            s->told_drop = false;
            any = true;
        }
        show(s);
        ready = result == RAT_DELIVERY_DONE || result == RAT_DELIVERY_BUSY;
    }
    if (ready && first > 0) {
        s->delivery.cursor[0] = '\0'; /* all behind it were tried: the oldest is next */
        any = true;
    }
    rat_spool_list_free(&list);
    return any && s->delivery.not_before_ns <= now_ns();
}

/* ---------------------------------------------------------------- the thread */

static bool is_finished(const struct rat_shipper *s)
{
    return s->options.once && (s->waiting == 0 || s->delivery.counts.failures_in_row >= RAT_SHIP_TRIES);
}

static void lower_priority(void)
{
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10); /* of this thread only, on Linux */
}

static void work(struct rat_shipper *s)
{
    uint64_t from = now_ns() + scaled(s, s->options.delay_ns);
    wait_until(s, from);
    bool may_deliver = now_ns() >= from; /* asked of the clock: a short program's stop may come before this thread runs */
    while (!is_stopping(s)) {
        recover(s);
        retain(s);
        bool more = deliver(s, false);
        if (is_finished(s))
            return;
        if (more || is_stopping(s))
            continue;
        if (s->http != NULL)
            rat_http_rest(s->http);
        uint64_t next = now_ns() + scaled(s, POLL_NS), put_off = s->delivery.not_before_ns;
        wait_until(s, s->waiting > 0 && put_off > now_ns() && put_off < next ? put_off : next);
    }
    RAT_TEST_POINT("shipper.stopping");
    if (may_deliver && !s->delivery.told_to_wait && !is_late(s)) {
        s->delivery.cursor[0] = '\0';
        (void)deliver(s, true);
    }
}

static void *shipper_main(void *argument)
{
    struct rat_shipper *s = argument;
    RAT_TEST_POINT("shipper.started");
    prctl(PR_SET_NAME, "ratrace-ship");
    if (s->options.polite)
        lower_priority();
    work(s);
    if (s->http != NULL)
        rat_http_rest(s->http);
    rat_spool_close(&s->spool);
    show(s);
    pthread_mutex_lock(&s->lock);
    s->has_ended = true;
    pthread_cond_broadcast(&s->ended);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---------------------------------------------------------------- start */

static void set_defaults(struct rat_ship_options *options)
{
    if (!(options->time_scale > 0))
        options->time_scale = 1;
    if (options->connect_ns == 0)
        options->connect_ns = 10 * SECOND;
    if (options->total_ns == 0)
        options->total_ns = 600 * SECOND;
    if (options->stall_ns == 0)
        options->stall_ns = 30 * SECOND;
    if (options->grace_ns == 0)
        options->grace_ns = GRACE_NS;
}

static void add_secret(struct rat_http_options *http, const char *secret)
{
    for (int i = 0; secret != NULL && secret[0] != '\0' && i < RAT_HTTP_SECRETS_MAX; i++)
        if (http->secrets[i] == NULL) {
            http->secrets[i] = secret;
            return;
        }
}

static enum rat_status make_client(struct rat_shipper *s, char *why, size_t why_length)
{
    const struct rat_ship_options *options = &s->options;
    enum rat_status status = rat_target_new(&options->target, &s->target, why, why_length);
    if (status == RAT_OK)
        status = rat_crypto_load(why, why_length);
    if (status == RAT_OK)
        status = rat_curl_load(why, why_length);
    if (status != RAT_OK)
        return status;
    struct rat_http_options http = {
        .ca_file = options->ca_file,
        .proxy = options->proxy,
        .no_proxy = options->no_proxy,
        .connect_ns = options->connect_ns,
        .total_ns = options->total_ns,
        .stall_ns = options->stall_ns,
        .wake = &s->wake,
        .stop_at = &s->stop_at,
    };
    add_secret(&http, options->target.token);
    add_secret(&http, options->target.s3.secret_access_key);
    add_secret(&http, options->target.s3.session_token);
    for (size_t i = 0; i < options->target.header_count; i++) {
        const char *value = strchr(options->target.headers[i], ':') + 1;
        add_secret(&http, value + strspn(value, " \t"));
    }
    status = rat_http_new(&http, &s->http);
    if (status != RAT_OK)
        snprintf(why, why_length, "%s", rat_status_text(status));
    return status;
}

static void free_shipper(struct rat_shipper *s)
{
    rat_http_free(s->http);
    if (s->target != NULL)
        s->target->free(s->target);
    rat_handle_close(&s->wake);
    rat_handle_close(&s->waker);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->ended);
    free(s);
}

static void init_shipper(struct rat_shipper *s, const struct rat_ship_options *options)
{
    s->options = *options;
    set_defaults(&s->options);
    rat_spool_init(&s->spool, options->dir);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->wake = s->waker = RAT_HANDLE_NONE;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return;
    rat_handle_hold(&s->wake, ends[0]);
    rat_handle_hold(&s->waker, ends[1]);
}

enum rat_status rat_shipper_start(const struct rat_ship_options *options, struct rat_shipper **out, char *why,
                                  size_t why_length)
{
    if (strlen(options->dir) >= sizeof((struct rat_spool *)0)->dir) {
        snprintf(why, why_length, "the path of the directory is too long");
        return RAT_INVALID;
    }
    rat_fork_gate_install();
    struct rat_shipper *s = calloc(1, sizeof *s);
    if (s == NULL) {
        snprintf(why, why_length, "out of memory");
        return RAT_NO_MEMORY;
    }
    init_shipper(s, options);
    enum rat_status status = rat_handle_fd(&s->wake) >= 0 ? RAT_OK : RAT_NO_MEMORY;
    if (status != RAT_OK)
        snprintf(why, why_length, "there is no free file descriptor");
    else if (options->has_target)
        status = make_client(s, why, why_length);
    if (status == RAT_OK) {
        s->delivery = (struct rat_delivery){
            .spool = &s->spool,
            .target = s->target,
            .http = s->http,
            .keep = options->keep,
            .time_scale = s->options.time_scale,
            .cancel = &s->cancel,
            .report = options->report,
            .user = options->user,
            .changed = show_delivery,
            .random = now_ns() ^ (uint64_t)getpid() << 32,
        };
        (void)!getrandom(&s->delivery.random, sizeof s->delivery.random, GRND_NONBLOCK);
        s->shown.running = true;
        status = rat_serializer_spawn(&s->thread, shipper_main, s);
        if (status != RAT_OK)
            snprintf(why, why_length, "%s", rat_status_text(status));
    }
    if (status != RAT_OK)
        free_shipper(s);
    else
        *out = s;
    return status;
}

/* ---------------------------------------------------------------- stats, stop, fork */

void rat_shipper_stats(struct rat_shipper *s, struct rat_ship_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->shown;
    out->running = !s->has_ended;
    pthread_mutex_unlock(&s->lock);
}

/* True: the thread has ended. */
static bool await_end(struct rat_shipper *s, uint64_t until)
{
    const struct timespec time = {.tv_sec = (time_t)(until / SECOND), .tv_nsec = (long)(until % SECOND)};
    int late = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->has_ended && late == 0)
        late = pthread_cond_timedwait(&s->ended, &s->lock, &time);
    bool ended = s->has_ended;
    pthread_mutex_unlock(&s->lock);
    return ended;
}

enum rat_status rat_shipper_stop(struct rat_shipper *s, uint64_t deadline_ns, struct rat_ship_stats *last)
{
    uint64_t stop_at = now_ns() + deadline_ns;
    atomic_store_explicit(&s->stop_at, stop_at, memory_order_release); /* before wake is readable */
    if (rat_handle_fd(&s->wake) >= 0) /* a pipe that nobody can read raises SIGPIPE, in the host */
        (void)!write(rat_handle_fd(&s->waker), "", 1);
    RAT_TEST_POINT("shipper.stop_asked");
    bool ended = await_end(s, stop_at);
    atomic_store_explicit(&s->cancel, 1, memory_order_relaxed);
    ended = ended || await_end(s, now_ns() + s->options.grace_ns);
    if (last != NULL)
        rat_shipper_stats(s, last);
    if (!ended) {
        pthread_detach(s->thread);
        return RAT_BUSY;
    }
    pthread_join(s->thread, NULL);
    free_shipper(s);
    return RAT_OK;
}

void rat_shipper_in_child(struct rat_shipper *s)
{
    rat_handle_close(&s->wake);
    rat_handle_close(&s->waker);
    rat_spool_in_child(&s->spool);
    if (s->http != NULL)
        rat_http_in_child(s->http);
}
