#include "ruby/rb_ship.h"

#include <pthread.h>
#include <ruby/thread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "deliver/shipper.h"
#include "ruby/rb_agent.h"
#include "ruby/rb_hash.h"
#include "ruby/rb_status.h"

/* The shipper of this process: one. Everything here under the GVL, but for the lines, which the shipper's thread adds.
 *
 * Fork. in_child runs in every forked child and closes what was inherited. The child's shipper starts with its first
 * recorded event (rb_rat_ship_in_child), and only after CHILD_DELAY: what a child of 50 ms leaves is delivered by its
 * parent, from the same directory, and nothing keeps the child from ending. */
#define CHILD_DELAY_NS UINT64_C(5000000000)
#define LINES_MAX 256

static const char *const string_keys[] = {
    "url", "method", "token", "finalize_url", "ca_file", "proxy", "out_dir", "live_dir"};
static const char *const s3_keys[] = {
    "bucket", "prefix", "endpoint", "region", "access_key_id", "secret_access_key", "session_token"};
static const char *const other_keys[] = {"headers", "s3",      "spool_bytes", "spool_age",  "keep", "deadline",
                                         "once",    "timeout", "lines",       "time_scale", "debug"};
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define STRINGS (COUNT(string_keys) + COUNT(s3_keys) + 2)

static struct {
    struct rat_shipper *shipper;
    uint64_t process;
    struct rat_ship_options options;
    uint64_t deadline_ns;
    bool debug, keeps_lines, stopping;
    char *strings[STRINGS]; /* owned; `options` points there */
    char *headers[RAT_TARGET_HEADERS_MAX];
    struct rat_ship_stats last; /* of the one that was stopped */
    pthread_mutex_t lines_lock;
    struct line {
        bool warning;
        char *text;
    } lines[LINES_MAX];
    size_t line_count;
} exporter = {.lines_lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_running(void)
{
    return exporter.shipper != NULL && exporter.process == rb_rat_process();
}

/* None of this is for two Ractors at once. */
static void require_main(void)
{
    if (rb_rat_agent_current() != rb_rat_main_agent)
        rb_raise(rb_path2class("Ratrace::Error"), "the exporter is the main Ractor's only");
}

/* ---------------------------------------------------------------- lines, on the shipper's thread */

static void report(void *user, bool warning, const char *line)
{
    (void)user;
    if (!exporter.keeps_lines) {
        if (warning || exporter.debug)
            dprintf(STDERR_FILENO, "ratrace: %s\n", line); /* no lock a forked child could find taken */
        return;
    }
    pthread_mutex_lock(&exporter.lines_lock);
    if (exporter.line_count < LINES_MAX) /* whoever wants more must ask more often */
        exporter.lines[exporter.line_count++] = (struct line){warning, strdup(line)};
    pthread_mutex_unlock(&exporter.lines_lock);
}

/* Native.exporter_lines: what there was to say since the last call, [[is a warning, text], …]; with `lines: true`. */
static VALUE native_lines(VALUE self)
{
    (void)self;
    require_main();
    static struct line taken[LINES_MAX];
    pthread_mutex_lock(&exporter.lines_lock);
    size_t count = exporter.line_count;
    memcpy(taken, exporter.lines, count * sizeof *taken);
    exporter.line_count = 0;
    pthread_mutex_unlock(&exporter.lines_lock);
    VALUE list = rb_ary_new();
    for (size_t i = 0; i < count; i++) {
        if (taken[i].text == NULL)
            continue;
        VALUE text = rb_utf8_str_new_cstr(taken[i].text);
        free(taken[i].text);
        rb_ary_push(list, rb_assoc_new(taken[i].warning ? Qtrue : Qfalse, text));
    }
    return list;
}

/* ---------------------------------------------------------------- options */

NORETURN(static void refuse(const char *format, ...)) __attribute__((format(printf, 1, 2)));
static void refuse(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    rb_raise(rb_path2class("Ratrace::ConfigurationError"), "%s", text);
}

static bool is_among(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static int check_key(VALUE key, VALUE value, VALUE of_s3)
{
    (void)value;
    const char *name = SYMBOL_P(key) ? rb_id2name(SYM2ID(key)) : "";
    bool known = of_s3 == Qtrue ? is_among(name, s3_keys, COUNT(s3_keys)) || strcmp(name, "path_style") == 0
                                : is_among(name, string_keys, COUNT(string_keys)) ||
            is_among(name, other_keys, COUNT(other_keys));
    if (!known)
        refuse("unknown option %s%s of the exporter", of_s3 == Qtrue ? "s3 " : "", name);
    return ST_CONTINUE;
}

static void check_string(VALUE hash, const char *name)
{
    VALUE value = rb_rat_get(hash, name);
    if (NIL_P(value))
        return;
    if (!RB_TYPE_P(value, T_STRING))
        refuse("%s: must be a string", name);
    if (memchr(RSTRING_PTR(value), '\0', (size_t)RSTRING_LEN(value)) != NULL)
        refuse("%s: must not have a NUL byte in it", name);
}

/* Seconds, 0 or more; nanoseconds out. */
static uint64_t take_seconds(VALUE hash, const char *name, uint64_t otherwise)
{
    VALUE value = rb_rat_get(hash, name);
    if (NIL_P(value))
        return otherwise;
    double seconds = RTEST(rb_obj_is_kind_of(value, rb_cNumeric)) ? NUM2DBL(value) : -1;
    if (!(seconds >= 0 && seconds <= 1e9))
        refuse("%s: must be a number of seconds, 0 or more", name);
    return (uint64_t)(seconds * 1e9);
}

static uint64_t take_bytes(VALUE hash, const char *name, uint64_t otherwise)
{
    VALUE value = rb_rat_get(hash, name);
    if (NIL_P(value))
        return otherwise;
    if (!RB_INTEGER_TYPE_P(value) || RTEST(rb_funcall(value, '<', 1, INT2FIX(0))))
        refuse("%s: must be a number of bytes; 0 = no bound", name);
    return NUM2ULL(value);
}

/* A Hash, or an Array of "Name: value", as such an Array of Strings. */
static VALUE header_lines(VALUE headers)
{
    if (NIL_P(headers))
        return rb_ary_new();
    bool hash = RB_TYPE_P(headers, T_HASH);
    VALUE pairs = hash ? rb_funcall(headers, rb_intern("to_a"), 0) : headers, lines = rb_ary_new();
    if (!RB_TYPE_P(pairs, T_ARRAY))
        refuse("headers: must be a Hash, or an Array of \"Name: value\"");
    if (RARRAY_LEN(pairs) > RAT_TARGET_HEADERS_MAX)
        refuse("headers: %ld are too many; at most %d", RARRAY_LEN(pairs), RAT_TARGET_HEADERS_MAX);
    for (long i = 0; i < RARRAY_LEN(pairs); i++) {
        VALUE line = RARRAY_AREF(pairs, i);
        if (hash)
            line = rb_sprintf("%" PRIsVALUE ": %" PRIsVALUE, RARRAY_AREF(line, 0), RARRAY_AREF(line, 1));
        if (!RB_TYPE_P(line, T_STRING) || memchr(RSTRING_PTR(line), '\0', (size_t)RSTRING_LEN(line)) != NULL)
            refuse("headers: one is not of the form \"Name: value\"");
        rb_ary_push(lines, line);
    }
    return lines;
}

static void free_secretly(char **text)
{
    if (*text != NULL)
        explicit_bzero(*text, strlen(*text));
    free(*text);
    *text = NULL;
}

static void free_options(void)
{
    for (size_t i = 0; i < STRINGS; i++)
        free_secretly(&exporter.strings[i]);
    for (size_t i = 0; i < RAT_TARGET_HEADERS_MAX; i++)
        free_secretly(&exporter.headers[i]);
}

static char *keep_string(size_t at, const char *text, size_t length)
{
    exporter.strings[at] = text != NULL ? strndup(text, length) : NULL;
    return exporter.strings[at];
}

static char *take_string(size_t at, VALUE hash, const char *name)
{
    VALUE value = NIL_P(hash) ? Qnil : rb_rat_get(hash, name);
    return NIL_P(value) ? NULL : keep_string(at, RSTRING_PTR(value), (size_t)RSTRING_LEN(value));
}

static const char *from_env(const char *lower, const char *upper)
{
    const char *value = getenv(lower);
    return value != NULL || upper == NULL ? value : getenv(upper);
}

/* The variables are read now, under the GVL: later another thread may be changing them. HTTP_PROXY in capitals is not
 * believed, as in libcurl: a CGI's client can set it. */
static void take_proxy(struct rat_ship_options *options, size_t at)
{
    const char *url = options->target.url != NULL ? options->target.url : options->target.s3.endpoint;
    bool plain = url != NULL && strncasecmp(url, "http://", 7) == 0;
    const char *proxy = plain ? from_env("http_proxy", NULL) : from_env("https_proxy", "HTTPS_PROXY");
    if (proxy == NULL)
        proxy = from_env("all_proxy", "ALL_PROXY");
    const char *no_proxy = from_env("no_proxy", "NO_PROXY");
    if (options->proxy == NULL && proxy != NULL)
        options->proxy = keep_string(at, proxy, strlen(proxy));
    options->no_proxy = no_proxy != NULL ? keep_string(at + 1, no_proxy, strlen(no_proxy)) : NULL;
}

/* All checks that may raise come first; the copies are then only made. */
static void take_options(VALUE hash)
{
    Check_Type(hash, T_HASH);
    VALUE s3 = rb_rat_get(hash, "s3"), headers = header_lines(rb_rat_get(hash, "headers"));
    rb_hash_foreach(hash, check_key, Qfalse);
    for (size_t i = 0; i < COUNT(string_keys); i++)
        check_string(hash, string_keys[i]);
    if (!NIL_P(s3)) {
        Check_Type(s3, T_HASH);
        rb_hash_foreach(s3, check_key, Qtrue);
        for (size_t i = 0; i < COUNT(s3_keys); i++)
            check_string(s3, s3_keys[i]);
    }
    if (NIL_P(rb_rat_get(hash, "out_dir")))
        refuse("out_dir: is missing");
    VALUE scale = rb_rat_get(hash, "time_scale");
    struct rat_ship_options options = {
        .bounds = {take_bytes(hash, "spool_bytes", RAT_SHIP_SPOOL_BYTES), take_seconds(hash, "spool_age", 0)},
        .keep = RTEST(rb_rat_get(hash, "keep")),
        .once = RTEST(rb_rat_get(hash, "once")),
        .total_ns = take_seconds(hash, "timeout", 0),
        .time_scale = NIL_P(scale) ? 0 : NUM2DBL(scale),
        .report = report,
    };
    uint64_t deadline_ns = take_seconds(hash, "deadline", RAT_SHIP_DEADLINE_NS);

    free_options();
    struct rat_target_options *target = &options.target;
    const char **const to[] = {&target->url,     &target->method, &target->token, &target->finalize_url,
                               &options.ca_file, &options.proxy,  &options.dir,   &options.live_dir};
    const char **const to_s3[] = {&target->s3.bucket,        &target->s3.prefix,
                                  &target->s3.endpoint,      &target->s3.region,
                                  &target->s3.access_key_id, &target->s3.secret_access_key,
                                  &target->s3.session_token};
    size_t at = 0;
    for (size_t i = 0; i < COUNT(to); i++)
        *to[i] = take_string(at++, hash, string_keys[i]);
    const char *live_dir = from_env("RATRACE_LIVE_DIR", NULL);
    if (live_dir == NULL)
        live_dir = "";
    if (options.live_dir == NULL)
        options.live_dir = keep_string(at - 1, live_dir, strlen(live_dir));
    for (size_t i = 0; i < COUNT(to_s3); i++)
        *to_s3[i] = take_string(at++, s3, s3_keys[i]);
    for (char *p = exporter.strings[1]; p != NULL && *p != '\0'; p++)
        *p = (char)(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p); /* method */
    target->s3.path_style = !NIL_P(s3) && RTEST(rb_rat_get(s3, "path_style"));
    for (; target->header_count < (size_t)RARRAY_LEN(headers); target->header_count++) {
        VALUE line = RARRAY_AREF(headers, (long)target->header_count);
        char *copy = strndup(RSTRING_PTR(line), (size_t)RSTRING_LEN(line));
        exporter.headers[target->header_count] = copy;
        target->headers[target->header_count] = copy != NULL ? copy : "";
    }
    options.has_target = target->url != NULL || target->s3.bucket != NULL;
    take_proxy(&options, at);
    exporter.options = options;
    exporter.deadline_ns = deadline_ns;
    exporter.keeps_lines = RTEST(rb_rat_get(hash, "lines"));
    exporter.debug = RTEST(rb_rat_get(hash, "debug"));
    exporter.options.polite = !exporter.keeps_lines;
}

/* ---------------------------------------------------------------- start and stop */

/* Start shipping: Native.exporter_start(out_dir:, url:, …), once a process. Strings but where another type is said.
 *
 *   out_dir      the directory of closed segments; may not exist yet
 *   url          http(s)://…; without it and `s3` only the bounds are held
 *   method       "put" (default; to URL/NAME) or "post" (to URL)
 *   headers      Hash, or Array of "Name: value"
 *   token        sent as a bearer token to `url` and `finalize_url`
 *   s3           Hash: bucket, prefix, endpoint, region, access_key_id, secret_access_key, session_token,
 *                path_style (Boolean)
 *   finalize_url gets a POST with metadata after each segment
 *   ca_file      CA certificates in place of the system's
 *   proxy        default: http_proxy, https_proxy, all_proxy and no_proxy, read now; "" = none
 *   spool_bytes  Integer: bound of all closed files; default 1 GiB, 0 = none
 *   spool_age    Numeric: seconds until a closed file is dropped; default 0 = never
 *   keep         Boolean: move what was delivered to delivered/
 *   deadline     Numeric: seconds that exporter_stop may take; default 1
 *   timeout      Numeric: seconds for one request; default 600
 *   live_dir     of the recovery of dead processes; default as for recording
 *   once         Boolean: end when all is delivered, or after 5 failures in a row
 *   lines, debug, time_scale   for the command and for tests
 *
 * True; Ratrace::ConfigurationError for what is not allowed, Ratrace::Error where it cannot start. */
static VALUE native_start(VALUE self, VALUE options)
{
    (void)self;
    require_main();
    if (is_running() || exporter.stopping)
        rb_raise(rb_path2class("Ratrace::Error"), "cannot start the exporter: it is running");
    exporter.shipper = NULL; /* a parent's */
    take_options(options);
    char why[512] = "";
    enum rat_status status = rat_shipper_start(&exporter.options, &exporter.shipper, why, sizeof why);
    if (status == RAT_INVALID)
        refuse("%s", why);
    if (status != RAT_OK)
        rb_rat_status_raise(status, "start the exporter", why);
    exporter.process = rb_rat_process();
    return Qtrue;
}

void rb_rat_ship_in_child(void)
{
    if (exporter.shipper == NULL || exporter.process == rb_rat_process())
        return;
    exporter.shipper = NULL;
    exporter.process = rb_rat_process();
    struct rat_ship_options options = exporter.options;
    options.delay_ns = CHILD_DELAY_NS;
    char why[512];
    if (rat_shipper_start(&options, &exporter.shipper, why, sizeof why) != RAT_OK) {
        exporter.shipper = NULL;
        report(NULL, true, why);
    }
}

struct stopping {
    struct rat_shipper *shipper;
    uint64_t deadline_ns;
    enum rat_status status;
    struct rat_ship_stats last;
};

static void *stop_nogvl(void *data)
{
    struct stopping *stopping = data;
    stopping->status = rat_shipper_stop(stopping->shipper, stopping->deadline_ns, &stopping->last);
    return data;
}

static bool stop(uint64_t deadline_ns, bool with_gvl)
{
    struct stopping stopping = {.shipper = exporter.shipper, .deadline_ns = deadline_ns};
    exporter.shipper = NULL;
    exporter.stopping = true;
    /* an interrupt that is due would be taken before the body runs: then it runs with the GVL (rb_session.c) */
    if (with_gvl || rb_nogvl(stop_nogvl, &stopping, NULL, NULL, RB_NOGVL_INTR_FAIL) == NULL)
        stop_nogvl(&stopping);
    exporter.last = stopping.last;
    exporter.stopping = false;
    if (stopping.status != RAT_OK) { /* left behind with its strings */
        memset(exporter.strings, 0, sizeof exporter.strings);
        memset(exporter.headers, 0, sizeof exporter.headers);
    }
    if (exporter.last.waiting > 0 && exporter.options.has_target && !exporter.keeps_lines) {
        char line[512];
        snprintf(line, sizeof line, "%llu segments (%llu bytes) are not delivered and stay in %.300s",
                 (unsigned long long)exporter.last.waiting, (unsigned long long)exporter.last.waiting_bytes,
                 exporter.options.dir);
        report(NULL, true, line);
    }
    if (stopping.status == RAT_OK)
        free_options();
    return exporter.last.waiting == 0;
}

/* Native.exporter_stop(deadline = nil): end within so many seconds (nil: those of exporter_start). True: nothing is left
 * to deliver; false: something waits for the next shipper; nil: none was running in this process. */
static VALUE native_stop(int argc, VALUE *argv, VALUE self)
{
    (void)self;
    VALUE deadline;
    require_main();
    rb_scan_args(argc, argv, "01", &deadline);
    double seconds = NIL_P(deadline) ? (double)exporter.deadline_ns / 1e9 : NUM2DBL(deadline);
    if (!(seconds >= 0 && seconds <= 1e9))
        refuse("deadline: must be a number of seconds, 0 or more");
    if (!is_running())
        return Qnil;
    return stop((uint64_t)(seconds * 1e9), false) ? Qtrue : Qfalse;
}

/* At the very end of the VM, if nobody has stopped it: no thread of ours may be inside OpenSSL when that cleans up. */
static void stop_at_end(VALUE nothing)
{
    (void)nothing;
    if (is_running())
        (void)stop(0, true);
}

/* ---------------------------------------------------------------- looking */

static VALUE seconds_or_nil(uint64_t ns)
{
    return ns != 0 ? DBL2NUM((double)ns / 1e9) : Qnil;
}

static VALUE failures_hash(const struct rat_delivery_counts *counts)
{
    VALUE hash = rb_hash_new();
    static const char *const classes[] = {"http_other", "http_1xx", NULL, "http_3xx", "http_4xx", "http_5xx"};
    for (size_t i = 0; i < COUNT(classes); i++)
        if (classes[i] != NULL)
            rb_rat_set(hash, classes[i], ULL2NUM(counts->statuses[i]));
    for (int i = 1; i < RAT_HTTP_FAILURES; i++)
        rb_rat_set(hash, rat_http_failure_name((enum rat_http_failure)i), ULL2NUM(counts->failures[i]));
    return hash;
}

/* Native.exporter_stats: the counters of the running exporter, else of the one stopped last. Times are in seconds;
 * last_error_at and last_delivery_at since the epoch. */
static VALUE native_stats(VALUE self)
{
    (void)self;
    require_main();
    struct rat_ship_stats stats = exporter.last;
    stats.running = false;
    if (is_running())
        rat_shipper_stats(exporter.shipper, &stats);
    const struct rat_delivery_counts *counts = &stats.delivery;
    VALUE hash = rb_hash_new(), dropped = rb_hash_new();
    rb_rat_set(hash, "running", stats.running ? Qtrue : Qfalse);
    rb_rat_set(hash, "waiting", ULL2NUM(stats.waiting));
    rb_rat_set(hash, "waiting_bytes", ULL2NUM(stats.waiting_bytes));
    rb_rat_set(hash, "attempts", ULL2NUM(counts->attempts));
    rb_rat_set(hash, "delivered", ULL2NUM(counts->delivered));
    rb_rat_set(hash, "delivered_bytes", ULL2NUM(counts->delivered_bytes));
    rb_rat_set(hash, "finalized", ULL2NUM(counts->finalized));
    rb_rat_set(hash, "retried", ULL2NUM(counts->retried));
    rb_rat_set(hash, "failures", failures_hash(counts));
    rb_rat_set(hash, "failures_in_row", UINT2NUM(counts->failures_in_row));
    rb_rat_set(hash, "poisoned", ULL2NUM(counts->poisoned));
    rb_rat_set(hash, "busy", ULL2NUM(counts->busy));
    static const char *const bounds[] = {[RAT_SPOOL_BY_BYTES] = "spool_bytes", [RAT_SPOOL_BY_AGE] = "spool_age"};
    for (size_t i = 0; i < COUNT(bounds); i++)
        rb_rat_set(dropped, bounds[i], ULL2NUM(stats.drops.waiting[i]));
    rb_rat_set(hash, "dropped", dropped);
    rb_rat_set(hash, "dropped_bytes", ULL2NUM(stats.drops.waiting_bytes[0] + stats.drops.waiting_bytes[1]));
    rb_rat_set(hash, "cleared", ULL2NUM(stats.drops.others));
    rb_rat_set(hash, "recovered_segments", ULL2NUM(stats.recovered_segments));
    rb_rat_set(hash, "recovered_events", ULL2NUM(stats.recovered_events));
    rb_rat_set(hash, "next_try", seconds_or_nil(stats.next_try_ns));
    rb_rat_set(hash, "last_status", counts->last_status != 0 ? UINT2NUM(counts->last_status) : Qnil);
    rb_rat_set(hash, "last_error", counts->last_error[0] != '\0' ? rb_utf8_str_new_cstr(counts->last_error) : Qnil);
    rb_rat_set(hash, "last_error_at", seconds_or_nil(counts->last_failure_ns));
    rb_rat_set(hash, "last_delivery_at", seconds_or_nil(counts->last_delivery_ns));
    return hash;
}

/* ---------------------------------------------------------------- the functions */

static void in_child(void)
{
    if (exporter.shipper != NULL && exporter.process != rb_rat_process())
        rat_shipper_in_child(exporter.shipper);
    pthread_mutex_init(&exporter.lines_lock, NULL);
    exporter.line_count = 0; /* the parent tells them */
    exporter.stopping = false;
}

void rb_rat_ship_init(VALUE native)
{
    rb_define_module_function(native, "exporter_start", native_start, 1);
    rb_define_module_function(native, "exporter_stop", native_stop, -1);
    rb_define_module_function(native, "exporter_stats", native_stats, 0);
    rb_define_module_function(native, "exporter_lines", native_lines, 0);
    pthread_atfork(NULL, NULL, in_child);
    rb_set_end_proc(stop_at_end, Qnil);
}
