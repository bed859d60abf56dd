#include "ruby/rb_recording.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ruby/rb_event.h"
#include "ruby/rb_hash.h"
#include "ruby/rb_reading.h"

#define BATCH 8192 /* events read ahead of the block */

/* ---------------------------------------------------------------- events */

struct replay_call {
    VALUE object;
    struct rb_rat_reading *reading;
    struct rb_rat_batch batch;
};

static VALUE yield_events(VALUE data)
{
    struct replay_call *call = (struct replay_call *)data;
    struct rat_visitor visitor = {.user = &call->batch, .event = rb_rat_batch_keep};
    rb_rat_reading_begin(call->reading, &visitor);
    bool more;
    do {
        more = rb_rat_reading_go_on(call->reading, BATCH);
        rb_rat_batch_yield(&call->batch, call->reading);
    } while (more);
    return Qnil;
}

static VALUE end_events(VALUE data)
{
    struct replay_call *call = (struct replay_call *)data;
    rb_rat_batch_free(&call->batch);
    return rb_rat_reading_close(call->object);
}

/* replay_events(paths, memory_max: nil) { |event| } -> nil */
static VALUE native_replay_events(VALUE self, VALUE paths, VALUE options)
{
    (void)self;
    rb_need_block();
    struct replay_call call = {0};
    call.object = rb_rat_reading_new(paths, options, &call.reading);
    rb_ensure(yield_events, (VALUE)&call, end_events, (VALUE)&call);
    RB_GC_GUARD(call.object);
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
            rb_ary_push(rb_rat_get(parent, "children"), hash);
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
        rb_rat_set(hash, "rows", rb_rat_reading_rows(call->reading, index));
    if (call->tree)
        rb_rat_set(hash, "children", rb_rat_get(rb_ary_entry(nodes, (long)thread->root), "children"));
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
    rb_rat_set(result, "rows", rb_rat_reading_rows(reading, SIZE_MAX));
    rb_rat_set(result, "threads", threads);
    rb_rat_set(result, "total_ns", ULL2NUM(whole_time(reading->profile)));
    rb_rat_set(result, "folded", ULL2NUM(rat_profile_folded(reading->profile)));
    return result;
}

/* profile(paths, memory_max: nil, nodes_max: nil, merged: false, threads: false, tree: false, min_share: 0.0)
 * -> {sessions:, files:, rows:, threads:, total_ns:, folded:} */
static VALUE native_profile(VALUE self, VALUE paths, VALUE options)
{
    (void)self;
    Check_Type(options, T_HASH);
    VALUE nodes_max = rb_rat_get(options, "nodes_max"), min_share = rb_rat_get(options, "min_share");
    struct profile_call call = {
        .threads = RTEST(rb_rat_get(options, "threads")),
        .tree = RTEST(rb_rat_get(options, "tree")),
        .merged = RTEST(rb_rat_get(options, "merged")),
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

void rb_rat_recording_init(VALUE native)
{
    rb_define_singleton_method(native, "replay_events", native_replay_events, 2);
    rb_define_singleton_method(native, "profile", native_profile, 2);
    rb_define_singleton_method(native, "account", native_account, 2);
}
