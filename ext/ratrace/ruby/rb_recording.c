#include "ruby/rb_recording.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ruby/rb_reading.h"

#define BATCH 8192 /* events read ahead of the block */

/* ---------------------------------------------------------------- events */

/* Events of one piece, copied, because their Ruby objects are made later. */
struct batch {
    struct rat_replay_event *events;
    size_t count, capacity;
    uint32_t *frames; /* of the snapshots, one behind the other */
    size_t frame_count, frame_capacity;
};

struct replay_call {
    VALUE object, process_of; /* process_of: Array of [pid, session id] by session index */
    struct rb_rat_reading *reading;
    struct batch batch;
};

static VALUE key_type, key_time, key_lane, key_context, key_process, key_session, key_owner, key_method, key_called,
    key_kind, key_file, key_line, key_count, key_frames, key_base, key_reason, key_note, key_value;

static enum rat_status make_room(void **table, size_t *capacity, size_t wanted, size_t size)
{
    if (wanted <= *capacity)
        return RAT_OK;
    size_t more = wanted * 2;
    void *fresh = realloc(*table, more * size);
    if (!fresh)
        return RAT_NO_MEMORY;
    *table = fresh;
    *capacity = more;
    return RAT_OK;
}

static enum rat_status keep_event(void *user, const struct rat_replay_event *event)
{
    struct batch *batch = user;
    enum rat_status status =
        make_room((void **)&batch->events, &batch->capacity, batch->count + 1, sizeof *batch->events);
    if (status == RAT_OK)
        status = make_room((void **)&batch->frames, &batch->frame_capacity, batch->frame_count + event->frame_count,
                           sizeof *batch->frames);
    if (status != RAT_OK)
        return status;
    if (event->frame_count > 0)
        memcpy(batch->frames + batch->frame_count, event->frames, event->frame_count * sizeof *batch->frames);
    batch->frame_count += event->frame_count;
    batch->events[batch->count++] = *event;
    return RAT_OK;
}

static VALUE word(const char *text)
{
    return rb_interned_str_cstr(text);
}

static VALUE type_of(enum rat_event_kind kind)
{
    switch (kind) {
#define CASE(code, number, name)                                                                   \
    case number:                                                                                   \
        return word(name);
        RAT_EVENT_LIST(CASE)
#undef CASE
    }
    return Qnil;
}

static void set_frame(VALUE hash, struct rb_rat_reading *reading, uint32_t id)
{
    struct rat_catalog_frame frame = *rat_catalog_frame(rat_replay_catalog(reading->replay), id);
    rb_hash_aset(hash, key_owner, rb_rat_reading_name(reading, frame.owner));
    rb_hash_aset(hash, key_method, rb_rat_reading_name(reading, frame.method));
    rb_hash_aset(hash, key_called, rb_rat_reading_name(reading, frame.called));
    rb_hash_aset(hash, key_kind, word(rb_rat_kind_name(frame.kind)));
    rb_hash_aset(hash, key_file, rb_rat_reading_name(reading, frame.file));
    rb_hash_aset(hash, key_line, UINT2NUM(frame.line));
}

static void set_snapshot(VALUE hash, struct rb_rat_reading *reading, const struct rat_replay_event *event,
                         const uint32_t *frames)
{
    static const char *const reasons[] = {"unknown", "start", "slot", "repair"};
    VALUE list = rb_ary_new_capa((long)event->frame_count);
    for (uint32_t i = 0; i < event->frame_count; i++) {
        VALUE frame = rb_hash_new();
        uint32_t kind = rat_catalog_frame(rat_replay_catalog(reading->replay), frames[i])->kind;
        set_frame(frame, reading, frames[i]);
        rb_hash_aset(frame, key_base, kind == RAT_FRAME_BASE ? Qtrue : Qfalse);
        rb_ary_push(list, frame);
    }
    rb_hash_aset(hash, key_frames, list);
    rb_hash_aset(hash, key_base, UINT2NUM(event->count));
    rb_hash_aset(hash, key_reason, word(reasons[event->reason <= RAT_SNAPSHOT_REPAIR ? event->reason : 0]));
}

static void set_end(VALUE hash, uint32_t reason)
{
    static const char *const reasons[] = {"unknown", "stop", "context_died", "fork"};
    rb_hash_aset(hash, key_reason, word(reasons[reason <= RAT_END_FORK ? reason : 0]));
}

static void set_note(VALUE hash, const struct rat_replay_event *event)
{
    static const char *const notes[] = {"unknown", "public_path", "clock_fallback", "depth_limit"};
    rb_hash_aset(hash, key_note, word(notes[event->reason <= RAT_NOTE_DEPTH_LIMIT ? event->reason : 0]));
    rb_hash_aset(hash, key_value, UINT2NUM(event->value));
}

/* [pid, session id], made once a session. */
static VALUE process_of(struct replay_call *call, const struct rat_replay_session *session)
{
    VALUE known = rb_ary_entry(call->process_of, session->index);
    if (!NIL_P(known))
        return known;
    char id[33];
    snprintf(id, sizeof id, "%016llx%016llx", (unsigned long long)session->hi, (unsigned long long)session->lo);
    known = rb_ary_new_from_args(2, session->has_info ? UINT2NUM(session->info.pid) : Qnil, word(id));
    rb_ary_store(call->process_of, session->index, known);
    return known;
}

static VALUE event_hash(struct replay_call *call, const struct rat_replay_event *event, const uint32_t *frames)
{
    VALUE hash = rb_hash_new(), process = process_of(call, event->session);
    rb_hash_aset(hash, key_type, type_of(event->kind));
    rb_hash_aset(hash, key_time, ULL2NUM(event->ns));
    rb_hash_aset(hash, key_lane, UINT2NUM(event->lane));
    rb_hash_aset(hash, key_context, UINT2NUM(event->context));
    rb_hash_aset(hash, key_process, RARRAY_AREF(process, 0));
    rb_hash_aset(hash, key_session, RARRAY_AREF(process, 1));
    switch (event->kind) {
    case RAT_EVENT_CALL:
    case RAT_EVENT_C_CALL:
        set_frame(hash, call->reading, event->frame);
        break;
    case RAT_EVENT_UNWIND:
        rb_hash_aset(hash, key_count, UINT2NUM(event->count));
        break;
    case RAT_EVENT_SNAPSHOT:
        set_snapshot(hash, call->reading, event, frames);
        break;
    case RAT_EVENT_END:
        set_end(hash, event->reason);
        break;
    case RAT_EVENT_NOTE:
        set_note(hash, event);
        break;
    default:
        break;
    }
    return hash;
}

static VALUE yield_events(VALUE data)
{
    struct replay_call *call = (struct replay_call *)data;
    struct rat_visitor visitor = {.user = &call->batch, .event = keep_event};
    rb_rat_reading_begin(call->reading, &visitor);
    bool more;
    do {
        call->batch.count = call->batch.frame_count = 0;
        more = rb_rat_reading_go_on(call->reading, BATCH);
        const uint32_t *frames = call->batch.frames;
        for (size_t i = 0; i < call->batch.count; i++) {
            const struct rat_replay_event *event = &call->batch.events[i];
            rb_yield(event_hash(call, event, frames));
            frames += event->frame_count;
        }
    } while (more);
    return Qnil;
}

static VALUE end_events(VALUE data)
{
    struct replay_call *call = (struct replay_call *)data;
    free(call->batch.events);
    free(call->batch.frames);
    return rb_rat_reading_close(call->object);
}

/* replay_events(paths, memory_max: nil) { |event| } -> nil */
static VALUE native_replay_events(VALUE self, VALUE paths, VALUE options)
{
    (void)self;
    rb_need_block();
    struct replay_call call = {.process_of = rb_ary_new()};
    call.object = rb_rat_reading_new(paths, options, &call.reading);
    rb_ensure(yield_events, (VALUE)&call, end_events, (VALUE)&call);
    RB_GC_GUARD(call.object);
    RB_GC_GUARD(call.process_of);
    return Qnil;
}

/* ---------------------------------------------------------------- profile and account */

struct profile_call {
    VALUE object;
    struct rb_rat_reading *reading;
    bool threads, tree, merged;
    uint32_t nodes_max;
    double min_share;
};

static VALUE rows_of(struct rb_rat_reading *reading, size_t thread)
{
    const struct rat_profile_flat *rows;
    size_t count;
    uint32_t frames = rat_catalog_frames(rat_replay_catalog(reading->replay));
    if (rat_profile_flatten(reading->profile, frames, thread, &rows, &count) != RAT_OK)
        rb_raise(rb_path2class("Ratrace::ReadError"), "recording: needs more memory to read; allow more with memory_max");
    VALUE list = rb_ary_new_capa((long)count);
    for (size_t i = 0; i < count; i++) {
        VALUE row = rb_hash_new();
        rb_rat_set(row, "frame", rb_rat_reading_frame(reading, rows[i].frame));
        rb_rat_set(row, "calls", ULL2NUM(rows[i].calls));
        rb_rat_set(row, "total_ns", ULL2NUM(rows[i].total_ns));
        rb_rat_set(row, "self_ns", ULL2NUM(rows[i].self_ns));
        rb_rat_set(row, "max_ns", ULL2NUM(rows[i].max_ns));
        rb_ary_push(list, row);
    }
    return list;
}

static uint64_t whole_time(const struct rat_profile *profile)
{
    uint64_t total = 0;
    for (size_t i = 0; i < rat_profile_thread_count(profile); i++)
        total += rat_profile_thread(profile, i)->total_ns;
    return total;
}

/* The nodes of all trees that take at least `min_share` of the whole, as an Array by node id; parents have lower ids. */
static VALUE nodes_of(struct rb_rat_reading *reading, double min_share)
{
    const struct rat_profile *profile = reading->profile;
    uint64_t least = (uint64_t)ceil((double)whole_time(profile) * min_share);
    VALUE nodes = rb_ary_new();
    for (uint32_t id = 1; id <= rat_profile_node_count(profile); id++) {
        const struct rat_profile_node *node = rat_profile_node(profile, id);
        VALUE parent = rb_ary_entry(nodes, node->parent);
        if (node->parent != 0 && (NIL_P(parent) || node->total_ns < least))
            continue;
        VALUE hash = rb_hash_new();
        rb_rat_set(hash, "frame", rb_rat_reading_frame(reading, node->frame));
        rb_rat_set(hash, "calls", ULL2NUM(node->calls));
        rb_rat_set(hash, "total_ns", ULL2NUM(node->total_ns));
        rb_rat_set(hash, "self_ns", ULL2NUM(node->self_ns));
        rb_rat_set(hash, "max_ns", ULL2NUM(node->max_ns));
        rb_rat_set(hash, "children", rb_ary_new());
        rb_ary_store(nodes, id, hash);
        if (node->parent != 0)
            rb_ary_push(rb_hash_aref(parent, ID2SYM(rb_intern("children"))), hash);
    }
    return nodes;
}

static VALUE thread_hash(struct profile_call *call, size_t index, VALUE nodes)
{
    const struct rat_profile_thread *thread = rat_profile_thread(call->reading->profile, index);
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "session", thread->session ? UINT2NUM(thread->session->index) : Qnil);
    rb_rat_set(hash, "context", thread->session ? UINT2NUM(thread->context) : Qnil);
    rb_rat_set(hash, "name", rb_rat_reading_name(call->reading, thread->name));
    rb_rat_set(hash, "os_tid", thread->os_tid ? ULL2NUM(thread->os_tid) : Qnil);
    rb_rat_set(hash, "fibers", UINT2NUM(thread->fibers));
    rb_rat_set(hash, "open", ULL2NUM(thread->open));
    rb_rat_set(hash, "total_ns", ULL2NUM(thread->total_ns));
    if (call->threads)
        rb_rat_set(hash, "rows", rows_of(call->reading, index));
    if (call->tree)
        rb_rat_set(hash, "children",
                   rb_hash_aref(rb_ary_entry(nodes, (long)thread->root), ID2SYM(rb_intern("children"))));
    return hash;
}

static VALUE run_profile(VALUE data)
{
    struct profile_call *call = (struct profile_call *)data;
    struct rb_rat_reading *reading = call->reading;
    struct rat_visitor visitor;
    if (rat_profile_new(call->nodes_max, call->merged, &reading->profile, &visitor) != RAT_OK)
        rb_memerror();
    rb_rat_reading_begin(reading, &visitor);
    rb_rat_reading_go_on(reading, 0);
    VALUE result = rb_rat_reading_account(reading), threads = rb_ary_new();
    VALUE nodes = call->tree ? nodes_of(reading, call->min_share) : Qnil;
    for (size_t i = 0; i < rat_profile_thread_count(reading->profile); i++)
        rb_ary_push(threads, thread_hash(call, i, nodes));
    rb_rat_set(result, "rows", rows_of(reading, SIZE_MAX));
    rb_rat_set(result, "threads", threads);
    rb_rat_set(result, "total_ns", ULL2NUM(whole_time(reading->profile)));
    rb_rat_set(result, "folded", ULL2NUM(rat_profile_folded(reading->profile)));
    return result;
}

static VALUE option(VALUE options, const char *name)
{
    return rb_hash_aref(options, ID2SYM(rb_intern(name)));
}

/* profile(paths, memory_max: nil, nodes_max: nil, merged: false, threads: false, tree: false, min_share: 0.0)
 * -> {sessions:, files:, rows:, threads:, total_ns:, folded:} */
static VALUE native_profile(VALUE self, VALUE paths, VALUE options)
{
    (void)self;
    Check_Type(options, T_HASH);
    VALUE nodes_max = option(options, "nodes_max"), min_share = option(options, "min_share");
    struct profile_call call = {
        .threads = RTEST(option(options, "threads")),
        .tree = RTEST(option(options, "tree")),
        .merged = RTEST(option(options, "merged")),
        .nodes_max = NIL_P(nodes_max) ? 0 : NUM2UINT(nodes_max),
        .min_share = NIL_P(min_share) ? 0 : NUM2DBL(min_share),
    };
    if (call.nodes_max > 1u << 30 || !(call.min_share >= 0 && call.min_share <= 1))
        rb_raise(rb_eArgError, "nodes_max is at most 2**30, min_share lies between 0 and 1");
    call.object = rb_rat_reading_new(paths, options, &call.reading);
    VALUE result = rb_ensure(run_profile, (VALUE)&call, rb_rat_reading_close, call.object);
    RB_GC_GUARD(call.object);
    return result;
}

static VALUE run_account(VALUE data)
{
    struct profile_call *call = (struct profile_call *)data;
    rb_rat_reading_begin(call->reading, &(struct rat_visitor){0});
    rb_rat_reading_go_on(call->reading, 0);
    return rb_rat_reading_account(call->reading);
}

/* account(paths, memory_max: nil) -> {sessions:, files:} */
static VALUE native_account(VALUE self, VALUE paths, VALUE options)
{
    (void)self;
    struct profile_call call = {0};
    call.object = rb_rat_reading_new(paths, options, &call.reading);
    VALUE result = rb_ensure(run_account, (VALUE)&call, rb_rat_reading_close, call.object);
    RB_GC_GUARD(call.object);
    return result;
}

static void define_keys(void)
{
    struct {
        VALUE *key;
        const char *text;
    } keys[] = {
        {&key_type, "type"},     {&key_time, "t"},           {&key_lane, "lane"},     {&key_context, "context"},
        {&key_process, "process"}, {&key_session, "session"}, {&key_owner, "owner"}, {&key_method, "method"},
        {&key_called, "called"}, {&key_kind, "kind"},     {&key_file, "file"},     {&key_line, "line"},
        {&key_count, "count"},   {&key_frames, "frames"}, {&key_base, "base"},     {&key_reason, "reason"},
        {&key_note, "note"},     {&key_value, "value"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        *keys[i].key = word(keys[i].text);
        rb_gc_register_mark_object(*keys[i].key);
    }
}

void rb_rat_recording_init(VALUE native)
{
    define_keys();
    rb_define_singleton_method(native, "replay_events", native_replay_events, 2);
    rb_define_singleton_method(native, "profile", native_profile, 2);
    rb_define_singleton_method(native, "account", native_account, 2);
}
