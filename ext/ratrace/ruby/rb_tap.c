#include "ruby/rb_tap.h"

#include <dirent.h>
#include <ruby/thread.h>
#include <string.h>
#include <unistd.h>

#include "deliver/live_file.h"
#include "deliver/live_tap.h"
#include "deliver/live_view.h"
#include "ruby/rb_event.h"
#include "ruby/rb_hash.h"
#include "ruby/rb_reading.h"

struct tap {
    struct rat_tap *tap;
    VALUE object; /* of `reading` */
    struct rb_rat_reading *reading;
    struct rb_rat_batch batch;
    struct rat_profile *profile;         /* of the reading, or NULL */
    uint32_t last_context[RAT_LANES + 1]; /* by lane number: whose the last event was */
    size_t limit;                        /* events kept of a look, the newest */
    uint64_t skipped;                    /* of those before */
    uint64_t now_ns;
    enum rat_status status;
};

static void tap_mark(void *data)
{
    rb_gc_mark(((struct tap *)data)->object);
}

static void tap_release(struct tap *tap)
{
    rat_tap_free(tap->tap);
    tap->tap = NULL;
    rb_rat_batch_free(&tap->batch);
}

static void tap_free(void *data)
{
    tap_release(data);
    xfree(data);
}

static const rb_data_type_t tap_type = {
    .wrap_struct_name = "ratrace/tap",
    .function = {.dmark = tap_mark, .dfree = tap_free},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static struct tap *get(VALUE object)
{
    struct tap *tap = rb_check_typeddata(object, &tap_type);
    if (!tap->tap)
        rb_raise(rb_eArgError, "this tap is closed");
    return tap;
}

/* ---------------------------------------------------------------- who is there */

static int open_dir(VALUE live_dir)
{
    char dir[RAT_LIVE_PATH_MAX], why[RAT_LIVE_PATH_MAX + 64];
    enum rat_status status = rat_live_dir(NIL_P(live_dir) ? NULL : StringValueCStr(live_dir), dir, sizeof dir);
    if (status != RAT_OK)
        rb_raise(rb_path2class("Ratrace::Error"), "the path of the live directory is too long");
    int fd = rat_live_dir_open(dir, false, why, sizeof why);
    if (fd < 0 && access(dir, F_OK) == 0)
        rb_raise(rb_path2class("Ratrace::Error"), "%s", why);
    return fd;
}

static VALUE text(const char *bytes)
{
    return rb_utf8_str_new_cstr(bytes);
}

static void describe(VALUE hash, const struct rat_live_head *head)
{
    rb_rat_set(hash, "pid", UINT2NUM(head->pid));
    rb_rat_set(hash, "service", text(head->service));
    rb_rat_set(hash, "host", text(head->host));
    rb_rat_set(hash, "ruby", text(head->ruby));
    rb_rat_set(hash, "out_dir", rb_filesystem_str_new_cstr(head->out_dir));
    rb_rat_set(hash, "start_ns", ULL2NUM(head->start.realtime_ns));
}

static VALUE live_file(int dir, const char *name)
{
    struct rat_live_view view;
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "name", rb_filesystem_str_new_cstr(name));
    enum rat_status status = rat_live_view_open(dir, name, NULL, false, &view);
    if (status == RAT_OK) {
        bool live = rat_live_view_is_live(&view) && !rat_live_view_is_other_boot(&view);
        describe(hash, view.head);
        rb_rat_set(hash, "live", live ? Qtrue : Qfalse);
        rat_live_view_close(&view);
        return hash;
    }
    if (status == RAT_NOT_FOUND || status == RAT_BUSY || status == RAT_TORN)
        return Qnil; /* gone, or being made */
    rb_rat_set(hash, "error", text(rat_status_text(status)));
    rb_rat_set(hash, "holder", INT2NUM(rat_live_view_holder(dir, name)));
    return hash;
}

/* live_files(live_dir) -> [{name:, live:, pid:, service:, host:, ruby:, out_dir:, start_ns:} or
 * {name:, error:, holder:}], of processes but this one; live: is it running? holder: pid of who has what cannot be
 * read, 0 = nobody */
static VALUE native_live_files(VALUE self, VALUE live_dir)
{
    (void)self;
    VALUE list = rb_ary_new(), names = rb_ary_new();
    int fd = open_dir(live_dir);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir)
        return list;
    size_t suffix = strlen(RAT_LIVE_SUFFIX);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length > suffix && strcmp(entry->d_name + length - suffix, RAT_LIVE_SUFFIX) == 0 &&
            !rat_live_is_own(entry->d_name))
            rb_ary_push(names, rb_str_new_cstr(entry->d_name));
    }
    for (long i = 0; i < RARRAY_LEN(names); i++) {
        VALUE name = RARRAY_AREF(names, i), found = live_file(dirfd(dir), RSTRING_PTR(name));
        if (!NIL_P(found))
            rb_ary_push(list, found);
    }
    closedir(dir);
    return list;
}

/* ---------------------------------------------------------------- looking */

/* The switch that leads a chunk in is no event of the process. */
static bool is_led_in(struct tap *tap, const struct rat_replay_event *event)
{
    if (event->lane > RAT_LANES)
        return false;
    bool same = tap->last_context[event->lane] == event->context;
    tap->last_context[event->lane] = event->context;
    return event->kind == RAT_EVENT_SWITCH && same;
}

static enum rat_status keep(void *user, const struct rat_replay_event *event)
{
    struct tap *tap = user;
    if (is_led_in(tap, event))
        return RAT_OK;
    struct rb_rat_batch *batch = &tap->batch;
    if (batch->count >= 2 * tap->limit) { /* the older half */
        size_t frames = 0;
        for (size_t i = 0; i < tap->limit; i++)
            frames += batch->events[i].frame_count;
        batch->count -= tap->limit;
        batch->frame_count -= frames;
        memmove(batch->events, batch->events + tap->limit, batch->count * sizeof *batch->events);
        if (batch->frame_count > 0)
            memmove(batch->frames, batch->frames + frames, batch->frame_count * sizeof *batch->frames);
        tap->skipped += tap->limit;
    }
    return rb_rat_batch_keep(batch, event);
}

/* tap_open(live_dir, name, profile: false, memory_max: nil) -> tap */
static VALUE native_tap_open(VALUE self, VALUE live_dir, VALUE name, VALUE options)
{
    (void)self;
    Check_Type(options, T_HASH);
    const char *path = StringValueCStr(name);
    struct tap *tap;
    VALUE object = TypedData_Make_Struct(0, struct tap, &tap_type, tap);
    tap->object = Qnil;
    tap->object = rb_rat_reading_new(rb_ary_new(), options, &tap->reading);
    struct rat_visitor visitor = {.user = tap, .event = keep};
    if (RTEST(rb_rat_get(options, "profile"))) {
        if (rat_profile_new(0, false, &tap->reading->profile, &visitor) != RAT_OK)
            rb_memerror();
        tap->profile = tap->reading->profile;
    }
    rb_rat_reading_begin(tap->reading, &visitor);
    if (rat_live_is_own(path))
        rb_raise(rb_path2class("Ratrace::Error"), "a process cannot look at itself from outside");
    int dir = open_dir(live_dir);
    enum rat_status status = dir < 0 ? RAT_NOT_FOUND : rat_tap_open(dir, path, NULL, &tap->tap);
    if (dir >= 0)
        close(dir);
    if (status != RAT_OK)
        rb_raise(rb_path2class("Ratrace::ReadError"), "%s: cannot be looked at: %s", path,
                 status == RAT_END ? "its process is gone" : rat_status_text(status));
    RB_GC_GUARD(name);
    return object;
}

static void *look_nogvl(void *data)
{
    struct tap *tap = data;
    const uint8_t *bytes;
    size_t length;
    struct rat_anchor now;
    tap->status = rat_tap_look(tap->tap, &bytes, &length, &now);
    tap->now_ns = now.monotonic_ns;
    if (tap->status == RAT_OK && length > 0)
        tap->status = rat_replay_feed(tap->reading->replay, bytes, length);
    return NULL;
}

static void raise_failure(const struct tap *tap)
{
    char name[40];
    const struct rat_live_head *head = rat_tap_head(tap->tap);
    rat_live_name(head->session_hi, head->session_lo, name);
    rb_raise(rb_path2class("Ratrace::ReadError"), "%s of pid %u: cannot be read: %s", name, head->pid,
             rat_status_text(tap->status));
}

/* tap_look(tap, limit) { |event| }: what was recorded since the last look, without a block only counted. Of more than
 * about `limit` events only the newest. -> {events:, missed:, dropped:, skipped:, over:}; skipped: of this look */
static VALUE native_tap_look(VALUE self, VALUE object, VALUE limit)
{
    (void)self;
    struct tap *tap = get(object);
    tap->limit = NUM2UINT(limit) > 0 ? NUM2UINT(limit) : 1;
    tap->skipped = 0;
    rb_thread_call_without_gvl(look_nogvl, tap, NULL, NULL);
    if (tap->status != RAT_OK)
        raise_failure(tap);
    if (rb_block_given_p())
        rb_rat_batch_yield(&tap->batch, tap->reading);
    struct rat_tap_counts counts = rat_tap_counts(tap->tap);
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "events", ULL2NUM(counts.events));
    rb_rat_set(hash, "missed", ULL2NUM(counts.missed));
    rb_rat_set(hash, "dropped", ULL2NUM(counts.dropped));
    rb_rat_set(hash, "skipped", ULL2NUM(tap->skipped));
    rb_rat_set(hash, "over", counts.over ? Qtrue : Qfalse);
    RB_GC_GUARD(object);
    return hash;
}

/* ---------------------------------------------------------------- intervals */

/* What each thread is in: of its fibers, the one that was heard of last. */
static VALUE threads_of(struct tap *tap)
{
    VALUE list = rb_ary_new();
    for (size_t i = 0; i < rat_replay_session_count(tap->reading->replay); i++) {
        const struct rat_replay_session *session = rat_replay_session(tap->reading->replay, i);
        VALUE by_thread = rb_hash_new();
        for (size_t id = 0; id < session->context_capacity; id++) {
            struct rat_replay_context *context = session->contexts[id];
            if (!context || !context->told)
                continue;
            struct rat_replay_context *thread = rat_replay_thread(context);
            VALUE key = UINT2NUM(thread->id), hash = rb_hash_aref(by_thread, key), last = ULL2NUM(context->last_ns);
            if (!NIL_P(hash) && RTEST(rb_funcall(rb_rat_get(hash, "last_ns"), rb_intern(">"), 1, last)))
                continue;
            hash = rb_hash_new();
            rb_rat_set(hash, "name", rb_rat_reading_name(tap->reading, thread->name));
            rb_rat_set(hash, "os_tid", ULL2NUM(thread->os_tid));
            rb_rat_set(hash, "last_ns", last);
            rb_rat_set(hash, "depth", SIZET2NUM(context->depth));
            rb_rat_set(hash, "frame",
                       context->depth ? rb_rat_reading_frame(tap->reading, context->stack[context->depth - 1].frame) : Qnil);
            rb_hash_aset(by_thread, key, hash);
        }
        rb_ary_concat(list, rb_funcall(by_thread, rb_intern("values"), 0));
    }
    return list;
}

/* tap_cut(tap): the profile since the last cut, of a tap opened with profile: true; the next one begins.
 * -> {rows:, threads:} */
static VALUE native_tap_cut(VALUE self, VALUE object)
{
    (void)self;
    struct tap *tap = get(object);
    if (!tap->profile)
        rb_raise(rb_eArgError, "this tap was opened without a profile");
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "threads", threads_of(tap));
    rat_replay_pause(tap->reading->replay, tap->now_ns);
    rb_rat_set(hash, "rows", rb_rat_reading_rows(tap->reading, SIZE_MAX));
    rat_profile_reset(tap->profile);
    tap->status = rat_replay_resume(tap->reading->replay);
    if (tap->status != RAT_OK)
        raise_failure(tap);
    RB_GC_GUARD(object);
    return hash;
}

static VALUE native_tap_close(VALUE self, VALUE object)
{
    (void)self;
    tap_release(rb_check_typeddata(object, &tap_type));
    return Qnil;
}

void rb_rat_tap_init(VALUE native)
{
    rb_define_singleton_method(native, "live_files", native_live_files, 1);
    rb_define_singleton_method(native, "tap_open", native_tap_open, 3);
    rb_define_singleton_method(native, "tap_look", native_tap_look, 2);
    rb_define_singleton_method(native, "tap_cut", native_tap_cut, 1);
    rb_define_singleton_method(native, "tap_close", native_tap_close, 1);
}
