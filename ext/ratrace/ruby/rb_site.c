#include "ruby/rb_site.h"

#include <pthread.h>
#include <stdlib.h>

#include "ruby/rb_class.h"
#include "ruby/rb_context.h"
#include "ruby/rb_cost.h"
#include "ruby/rb_governor.h"
#include "ruby/rb_hook.h"
#include "ruby/rb_public_path.h"

#define COLD __attribute__((noinline, cold))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum { WORD_EC = 1, WORD_CFP = 2 }; /* rb_hook.c has the rest */

/* Why a callback must look up: bits of rb_rat_beat.due beside RAT_BEAT_DUE. */
#define DUE_RACTORS 2u
#define DUE_FORKED 4u

static struct {
    struct rb_rat_hot *hot;  /* of the main Ractor's agent; NULL = no recording */
    rb_rat_hook *record;
    uint32_t sample;         /* hooks until one is timed */
    _Atomic uint64_t elsewhere;
    struct rb_rat_site **sites;
    uint32_t count, capacity;
} scope;

static ID id_tag, id_seen;

static inline uint32_t due(void)
{
    return atomic_load_explicit(&rb_rat_beat.due, memory_order_relaxed);
}

static inline const uintptr_t *words(VALUE tracepoint)
{
    return (const uintptr_t *)rb_tracearg_from_tracepoint(tracepoint);
}

static void leave_out(struct rb_rat_site *site)
{
    if ((due() & DUE_RACTORS) != 0)
        atomic_fetch_add_explicit(&site->left_out, 1, memory_order_relaxed);
    else
        atomic_store_explicit(&site->left_out, atomic_load_explicit(&site->left_out, memory_order_relaxed) + 1,
                              memory_order_relaxed);
}

/* ---------------------------------------------------------------- the main Ractor */

/* Of the frame that calls or returns, as the recorder knows it. */
static COLD uintptr_t word_of(struct rb_rat_hot *hot, const uintptr_t *arg)
{
    return rb_rat_agent_of(hot)->words ? arg[WORD_CFP] : rb_rat_public_frame();
}

static inline __attribute__((always_inline)) void record_call(struct rb_rat_site *site, struct rb_rat_hot *hot,
                                                              const uintptr_t *arg)
{
    scope.record(RB_RAT_DATA_OF(hot), (const rb_trace_arg_t *)arg);
    site->calls++;
    site->open++;
    if (UNLIKELY(site->frame == 0) && hot->recorder.context != NULL && hot->recorder.top->word == word_of(hot, arg))
        site->frame = hot->recorder.top->id;
}

static inline __attribute__((always_inline)) void record_return(struct rb_rat_site *site, struct rb_rat_hot *hot,
                                                                const uintptr_t *arg)
{
    scope.record(RB_RAT_DATA_OF(hot), (const rb_trace_arg_t *)arg);
    site->open -= site->open != 0;
}

/* The gate is closed, but frames from before are open, perhaps this one. Deeper than all of them it is not. */
static void return_closed(struct rb_rat_site *site, struct rb_rat_agent *agent, const uintptr_t *arg)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    uintptr_t word = arg[WORD_CFP];
    if (!rb_rat_agent_live(agent) || !agent->words)
        return;
    if (recorder->ec != arg[WORD_EC] &&
        !rb_rat_context_enter(agent, arg[WORD_EC], false, rat_clock_ticks(recorder->clock)))
        return;
    if (recorder->top->word <= word && rat_recorder_find(recorder, word) >= 0)
        record_return(site, agent->hot, arg);
}

/* ---------------------------------------------------------------- the careful way */

/* Another context than the last, another Ractor, a forked child. NULL: nobody records this. A Ractor that attached to an
 * earlier recording has not attached to this one. */
static struct rb_rat_agent *whose(void)
{
    struct rb_rat_agent *agent = scope.hot != NULL ? rb_rat_agent_current() : NULL;
    return agent != NULL && agent->start == rb_rat_main_agent->start ? agent : NULL;
}

static COLD void call_careful(struct rb_rat_site *site, VALUE tracepoint)
{
    struct rb_rat_agent *agent = whose();
    if (agent == NULL) {
        if (scope.hot != NULL && site->asked)
            atomic_fetch_add_explicit(&scope.elsewhere, 1, memory_order_relaxed);
        return;
    }
    bool main = agent == rb_rat_main_agent;
    if (main && (due() & DUE_FORKED) != 0)
        rb_rat_sites_begin(agent); /* its gates; the recording follows with the event */
    if (site->closed) {
        leave_out(site);
    } else if (main) {
        record_call(site, agent->hot, words(tracepoint));
    } else {
        scope.record(RB_RAT_DATA_OF(agent->hot), rb_tracearg_from_tracepoint(tracepoint));
    }
    if (main && (due() & RAT_BEAT_DUE) != 0)
        rb_rat_governor_beat(agent);
}

static COLD void return_careful(struct rb_rat_site *site, VALUE tracepoint)
{
    struct rb_rat_agent *agent = whose();
    if (agent == NULL)
        return;
    if (agent != rb_rat_main_agent)
        scope.record(RB_RAT_DATA_OF(agent->hot), rb_tracearg_from_tracepoint(tracepoint));
    else if (site->closed)
        return_closed(site, agent, words(tracepoint));
    else
        record_return(site, agent->hot, words(tracepoint));
    if (UNLIKELY(site->closing) && agent == rb_rat_main_agent && site->open == 0)
        rb_rat_governor_close(agent, site);
}

static COLD void call_timed(struct rb_rat_site *site, struct rb_rat_hot *hot, VALUE tracepoint)
{
    enum rat_clock_kind clock = hot->recorder.clock;
    uint64_t from = rat_clock_ticks(clock);
    scope.sample = RB_RAT_COST_SAMPLE;
    record_call(site, hot, words(tracepoint));
    rb_rat_cost_sample(rat_clock_ticks(clock) - from);
}

static COLD void return_timed(struct rb_rat_site *site, struct rb_rat_hot *hot, VALUE tracepoint)
{
    enum rat_clock_kind clock = hot->recorder.clock;
    uint64_t from = rat_clock_ticks(clock);
    scope.sample = RB_RAT_COST_SAMPLE;
    record_return(site, hot, words(tracepoint));
    rb_rat_cost_sample(rat_clock_ticks(clock) - from);
}

/* ---------------------------------------------------------------- the callbacks */

static void site_called(VALUE tracepoint, void *data)
{
    struct rb_rat_site *site = data;
    if (UNLIKELY(due() != 0)) {
        call_careful(site, tracepoint);
        return;
    }
    if (site->closed) {
        leave_out(site);
        return;
    }
    const uintptr_t *arg = words(tracepoint);
    struct rb_rat_hot *hot = scope.hot;
    if (UNLIKELY(hot->recorder.ec != arg[WORD_EC]))
        call_careful(site, tracepoint);
    else if (UNLIKELY(--scope.sample == 0))
        call_timed(site, hot, tracepoint);
    else
        record_call(site, hot, arg);
}

static void site_returned(VALUE tracepoint, void *data)
{
    struct rb_rat_site *site = data;
    if (site->closed && LIKELY(site->open == 0 && (due() & DUE_RACTORS) == 0))
        return;
    if (UNLIKELY(site->closed || (due() & DUE_RACTORS) != 0)) {
        return_careful(site, tracepoint);
        return;
    }
    const uintptr_t *arg = words(tracepoint);
    struct rb_rat_hot *hot = scope.hot;
    if (UNLIKELY(hot->recorder.ec != arg[WORD_EC]))
        return_careful(site, tracepoint);
    else if (UNLIKELY(--scope.sample == 0))
        return_timed(site, hot, tracepoint);
    else
        record_return(site, hot, arg);
}

static void site_event(VALUE tracepoint, void *data)
{
    if (rb_tracearg_event_flag(rb_tracearg_from_tracepoint(tracepoint)) == RUBY_EVENT_CALL)
        site_called(tracepoint, data);
    else
        site_returned(tracepoint, data);
}

static void ractor_begins(VALUE tracepoint, void *data)
{
    (void)tracepoint, (void)data;
    atomic_fetch_or_explicit(&rb_rat_beat.due, DUE_RACTORS, memory_order_relaxed); /* before its thread is made */
}

/* ---------------------------------------------------------------- life */

void rb_rat_sites_forget(void)
{
    for (uint32_t i = 0; i < scope.count; i++)
        scope.sites[i]->asked = false;
}

void rb_rat_sites_begin(struct rb_rat_agent *agent)
{
    for (uint32_t i = 0; i < scope.count; i++) {
        struct rb_rat_site *site = scope.sites[i];
        site->closed = !site->asked;
        site->open = site->frame = 0;
        site->closing = false;
        site->calls = site->seen_calls = site->seen_left_out = site->told_left_out = 0;
        site->closed_ns = site->retry_ns = site->backoff_ns = 0;
        atomic_store_explicit(&site->left_out, 0, memory_order_relaxed);
    }
    atomic_fetch_and_explicit(&rb_rat_beat.due, ~(DUE_FORKED | RAT_BEAT_DUE), memory_order_relaxed);
    scope.record = rb_rat_hook_function(agent);
    scope.sample = RB_RAT_COST_SAMPLE;
    scope.elsewhere = 0;
    scope.hot = agent->hot;
}

void rb_rat_sites_end(void)
{
    for (uint32_t i = 0; i < scope.count; i++) {
        scope.sites[i]->closed = 1;
        scope.sites[i]->open = 0;
        scope.sites[i]->closing = false;
    }
    scope.hot = NULL;
}

/* The first event of a traced method in the child goes the careful way. */
static void in_child(void)
{
    atomic_fetch_or_explicit(&rb_rat_beat.due, DUE_FORKED, memory_order_relaxed);
}

uint32_t rb_rat_site_count(void)
{
    return scope.count;
}

struct rb_rat_site *rb_rat_site_at(uint32_t index)
{
    return scope.sites[index];
}

bool rb_rat_sites_alone(void)
{
    return (due() & DUE_RACTORS) == 0;
}

uint64_t rb_rat_sites_elsewhere(void)
{
    return atomic_load_explicit(&scope.elsewhere, memory_order_relaxed);
}

/* ---------------------------------------------------------------- what a closed gate costs */

static void nothing(VALUE tracepoint, void *data)
{
    (void)tracepoint, (void)data;
}

static uint64_t time_of(void (*volatile call)(VALUE, void *), void (*volatile done)(VALUE, void *), void *data)
{
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < 8; round++) {
        uint64_t from = rat_clock_ns(CLOCK_MONOTONIC);
        for (int i = 0; i < 1000; i++) {
            call(Qnil, data);
            done(Qnil, data);
        }
        uint64_t took = rat_clock_ns(CLOCK_MONOTONIC) - from;
        best = took < best ? took : best;
    }
    return best;
}

double rb_rat_site_gate_ns(void)
{
    struct rb_rat_site closed = {.closed = 1};
    if ((due() & DUE_RACTORS) != 0)
        return 4.0; /* it cannot be tried without a TracePoint at hand */
    atomic_fetch_and_explicit(&rb_rat_beat.due, 0, memory_order_relaxed);
    uint64_t gate = time_of(site_called, site_returned, &closed), empty = time_of(nothing, nothing, &closed);
    return gate > empty ? (double)(gate - empty) / 1000.0 : 0.1;
}

/* ---------------------------------------------------------------- for Ratrace::Targets */

/* A new site's index; nil when there are too many. */
static VALUE native_site_new(VALUE self, VALUE exempt)
{
    (void)self;
    if (scope.count == RB_RAT_SITES)
        return Qnil;
    if (scope.count == scope.capacity) {
        uint32_t capacity = scope.capacity ? scope.capacity * 2 : 256;
        struct rb_rat_site **sites = realloc(scope.sites, capacity * sizeof *sites);
        if (sites == NULL)
            return Qnil;
        scope.sites = sites;
        scope.capacity = capacity;
    }
    struct rb_rat_site *site = calloc(1, sizeof *site);
    if (site == NULL)
        return Qnil;
    site->number = scope.count + 1;
    site->exempt = RTEST(exempt);
    site->closed = 1;
    scope.sites[scope.count++] = site;
    return UINT2NUM(site->number - 1);
}

/* The recording that has just begun wants it. True: nobody has asked for it before. */
static VALUE native_site_ask(VALUE self, VALUE index)
{
    (void)self;
    uint32_t at = NUM2UINT(index);
    if (at >= scope.count)
        rb_raise(rb_eArgError, "no such site");
    struct rb_rat_site *site = scope.sites[at];
    if (site->asked)
        return Qfalse;
    site->asked = true;
    site->closed = scope.hot == NULL;
    atomic_store_explicit(&site->left_out, 0, memory_order_relaxed); /* until now nobody wanted its calls */
    site->told_left_out = site->seen_left_out = 0;
    return Qtrue;
}

static VALUE tagged(VALUE tracepoint)
{
    rb_ivar_set(tracepoint, id_tag, Qtrue);
    return tracepoint;
}

/* TracePoints for the site, not enabled yet: two, or one for both events. */
static VALUE native_site_tracepoints(VALUE self, VALUE index, VALUE together)
{
    (void)self;
    uint32_t at = NUM2UINT(index);
    if (at >= scope.count)
        rb_raise(rb_eArgError, "no such site");
    struct rb_rat_site *site = scope.sites[at];
    if (RTEST(together)) {
        VALUE both = rb_tracepoint_new(0, RUBY_EVENT_CALL | RUBY_EVENT_RETURN, site_event, site);
        return rb_ary_new_from_args(1, both); /* not tagged: it stays */
    }
    VALUE call = rb_tracepoint_new(0, RUBY_EVENT_CALL, site_called, site);
    VALUE done = rb_tracepoint_new(0, RUBY_EVENT_RETURN, site_returned, site);
    return rb_ary_new_from_args(2, tagged(call), tagged(done));
}

static VALUE native_site_tag(VALUE self, VALUE tracepoint)
{
    (void)self;
    return tagged(tracepoint);
}

/* Counts recordings: marks of an earlier one are void. */
static VALUE native_site_generation(VALUE self)
{
    (void)self;
    return ULL2NUM(rb_rat_main_agent->generation);
}

static VALUE frames_of(const rb_debug_inspector_t *inspector, void *list)
{
    VALUE locations = rb_debug_inspector_backtrace_locations(inspector);
    for (long i = 0; i < RARRAY_LEN(locations); i++) {
        VALUE iseq = rb_debug_inspector_frame_iseq_get(inspector, i);
        if (!NIL_P(iseq))
            rb_ary_push((VALUE)list, iseq);
    }
    return Qnil;
}

/* The InstructionSequences of this thread's frames. */
static VALUE native_site_running(VALUE self)
{
    (void)self;
    VALUE list = rb_ary_new();
    rb_debug_inspector_open(frames_of, (void *)list);
    return list;
}

/* For Ractor.new. */
static VALUE native_site_ractor_tracepoint(VALUE self)
{
    (void)self;
    return tagged(rb_tracepoint_new(0, RUBY_EVENT_CALL, ractor_begins, NULL));
}

static VALUE native_site_ractors(VALUE self)
{
    (void)self;
    ractor_begins(Qnil, NULL);
    return Qnil;
}

static VALUE native_site_ours_p(VALUE self, VALUE tracepoint)
{
    (void)self;
    return RTEST(rb_ivar_get(tracepoint, id_tag)) ? Qtrue : Qfalse;
}

/* What hangs on an object for Targets, hidden; it dies with the object. A frozen one takes nothing: nil. */
static VALUE native_site_seen(VALUE self, VALUE object)
{
    (void)self;
    return RB_OBJ_FROZEN_RAW(object) ? Qnil : rb_ivar_get(object, id_seen);
}

static VALUE native_site_see(VALUE self, VALUE object, VALUE what)
{
    (void)self;
    if (!RB_OBJ_FROZEN_RAW(object))
        rb_ivar_set(object, id_seen, what);
    return what;
}

/* The singleton class that an object has, or nil; none is made. */
static VALUE native_site_singleton(VALUE self, VALUE object)
{
    (void)self;
    VALUE klass = RB_SPECIAL_CONST_P(object) ? Qnil : RBASIC_CLASS(object);
    return !NIL_P(klass) && RB_TYPE_P(klass, T_CLASS) && RB_FL_TEST_RAW(klass, RUBY_FL_SINGLETON) ? klass : Qnil;
}

/* [the class or module whose singleton class it is], or []. */
static VALUE native_site_attached(VALUE self, VALUE klass)
{
    (void)self;
    if (!RB_TYPE_P(klass, T_CLASS) || !RB_FL_TEST_RAW(klass, RUBY_FL_SINGLETON))
        return rb_ary_new();
    VALUE object = rb_rat_class_attached(klass);
    bool module = !RB_SPECIAL_CONST_P(object) && (RB_TYPE_P(object, T_CLASS) || RB_TYPE_P(object, T_MODULE));
    return module ? rb_ary_new_from_args(1, object) : rb_ary_new();
}

/* [site, closed, calls, left out] of each that was called. */
static VALUE native_site_counts(VALUE self)
{
    (void)self;
    VALUE list = rb_ary_new();
    for (uint32_t i = 0; scope.hot != NULL && i < scope.count; i++) {
        const struct rb_rat_site *site = scope.sites[i];
        uint64_t left_out = atomic_load_explicit(&site->left_out, memory_order_relaxed);
        if (site->asked && !site->exempt && (site->calls > 0 || left_out > 0))
            rb_ary_push(list, rb_ary_new_from_args(4, UINT2NUM(i), site->closed ? Qtrue : Qfalse,
                                                   ULL2NUM(site->calls), ULL2NUM(left_out)));
    }
    return list;
}

void rb_rat_site_init(VALUE native)
{
    id_tag = rb_intern("__ratrace_site__"); /* no @: Ruby code cannot see it */
    id_seen = rb_intern("__ratrace_seen__");
    pthread_atfork(NULL, NULL, in_child);
    rb_define_module_function(native, "site_new", native_site_new, 1);
    rb_define_module_function(native, "site_ask", native_site_ask, 1);
    rb_define_module_function(native, "site_tracepoints", native_site_tracepoints, 2);
    rb_define_module_function(native, "site_ractor_tracepoint", native_site_ractor_tracepoint, 0);
    rb_define_module_function(native, "site_ractors", native_site_ractors, 0);
    rb_define_module_function(native, "site_ours?", native_site_ours_p, 1);
    rb_define_module_function(native, "site_tag", native_site_tag, 1);
    rb_define_module_function(native, "site_generation", native_site_generation, 0);
    rb_define_module_function(native, "site_running", native_site_running, 0);
    rb_define_module_function(native, "site_seen", native_site_seen, 1);
    rb_define_module_function(native, "site_see", native_site_see, 2);
    rb_define_module_function(native, "site_singleton", native_site_singleton, 1);
    rb_define_module_function(native, "site_attached", native_site_attached, 1);
    rb_define_module_function(native, "site_counts", native_site_counts, 0);
}
