#include "ruby/rb_canary.h"

#include <fcntl.h>
#include <ruby/debug.h>
#include <ruby/version.h>
#include <stdint.h>
#include <unistd.h>

#include "ruby/rb_hash.h"

#define SAMPLES 96
#define STACK 32
#define FRAME_BYTES_MIN 32
#define FRAME_BYTES_MAX 256
#define T_IMEMO_MENT 6 /* imemo_ment */

struct sample {
    rb_event_flag_t event;
    uintptr_t words[8];
    VALUE method, called, owner; /* as the public calls say */
    VALUE frame;                 /* rb_profile_frames(0, 1) */
    VALUE frame_method;          /* its name; nil for a define_method body */
    uintptr_t entry;             /* ep[-2] at a call */
    bool readable;               /* and it could be read */
};

static struct sample samples[SAMPLES];
static int sample_count;
static VALUE watched; /* the thread that runs the nest */
static int peek_pipe[2];

/* Read a word of our own memory; false where there is none. */
static bool peek(uintptr_t address, uintptr_t *out)
{
    return write(peek_pipe[1], (const void *)address, sizeof *out) == (ssize_t)sizeof *out &&
        read(peek_pipe[0], out, sizeof *out) == (ssize_t)sizeof *out;
}

static void watch(VALUE data, const rb_trace_arg_t *raw)
{
    (void)data;
    if (sample_count == SAMPLES || rb_thread_current() != watched)
        return;
    struct sample *sample = &samples[sample_count++];
    rb_trace_arg_t *arg = (rb_trace_arg_t *)(uintptr_t)raw;
    for (int i = 0; i < 8; i++)
        sample->words[i] = ((const uintptr_t *)raw)[i]; /* before the public calls below may fill them */
    sample->event = rb_tracearg_event_flag(arg);
    sample->method = rb_tracearg_method_id(arg);
    sample->called = rb_tracearg_callee_id(arg);
    sample->owner = rb_tracearg_defined_class(arg);
    if (sample->event != RUBY_EVENT_CALL || rb_profile_frames(0, 1, &sample->frame, NULL) != 1)
        return;
    sample->frame_method = rb_profile_frame_method_name(sample->frame);
    uintptr_t ep;
    sample->readable = sample->words[2] % sizeof(uintptr_t) == 0 &&
        peek(sample->words[2] + 4 * sizeof(uintptr_t), &ep) && ep % sizeof(uintptr_t) == 0 &&
        peek(ep - 2 * sizeof(uintptr_t), &sample->entry);
}

static bool is_method_entry(uintptr_t value)
{
    uintptr_t flags;
    return value != 0 && value % 8 == 0 && peek(value, &flags) && (flags & RUBY_T_MASK) == RUBY_T_IMEMO &&
        (flags >> FL_USHIFT & 15) == T_IMEMO_MENT;
}

static bool c_words_agree(const struct sample *sample)
{
    return SYMBOL_P(sample->method) && SYM2ID(sample->method) == (ID)sample->words[4] && SYMBOL_P(sample->called) &&
        SYM2ID(sample->called) == (ID)sample->words[5] && sample->owner == (VALUE)sample->words[6];
}

/* What must hold, in the order of the events. NULL = all of it. */
static const char *judge(bool c_events, size_t *frame_bytes)
{
    uintptr_t open[STACK];
    int depth = 0, calls = 0, c_calls = 0, block_methods = 0;
    uintptr_t closest = 0;
    for (int i = 0; i < sample_count; i++) {
        const struct sample *s = &samples[i];
        uintptr_t word = s->words[2];
        if ((uint32_t)s->words[0] != s->event)
            return "word 0 is not the event";
        if (s->words[1] == 0 || s->words[1] != samples[0].words[1])
            return "word 1 is not one execution context";
        switch (s->event) {
        case RUBY_EVENT_CALL:
            if (depth > 0 && word >= open[depth - 1])
                return "frames do not grow downwards";
            if (depth > 0 && (closest == 0 || open[depth - 1] - word < closest))
                closest = open[depth - 1] - word;
            if (depth == STACK)
                return "the nest is deeper than expected";
            open[depth++] = word;
            if (!s->readable || !is_method_entry(s->entry))
                return "ep[-2] is not a method entry";
            if (NIL_P(s->frame_method))
                block_methods++;
            else if (s->entry != s->frame)
                return "ep[-2] is not the frame's method entry";
            calls++;
            break;
        case RUBY_EVENT_RETURN:
            if (depth > 0 && open[depth - 1] == word)
                depth--;
            else if (depth > 0)
                return "a return carries another word than its call";
            break;
        case RUBY_EVENT_C_CALL:
        case RUBY_EVENT_C_RETURN:
            if (depth > 0 && !c_words_agree(s))
                return "words 4 to 6 are not what the public calls say";
            c_calls += depth > 0;
            break;
        }
    }
    if (calls < 6 || (c_events && c_calls < 4) || block_methods < 2 || depth != 0)
        return "events are missing";
    if (closest < FRAME_BYTES_MIN || closest > FRAME_BYTES_MAX || closest % sizeof(uintptr_t) != 0)
        return "frames are not a plausible size apart";
    for (int i = 1; i < sample_count; i++) {
        uintptr_t a = samples[i - 1].words[2], b = samples[i].words[2];
        if ((a > b ? a - b : b - a) % closest != 0)
            return "frames are not a multiple of one size apart";
    }
    *frame_bytes = closest;
    return NULL;
}

static VALUE call_nest(VALUE nest)
{
    return rb_funcall(nest, rb_intern("run"), 0);
}

static void watch_tracepoint(VALUE tracepoint, void *unused)
{
    (void)unused;
    watch(Qnil, rb_tracearg_from_tracepoint(tracepoint));
}

/* [TracePoint, ...], one for each method of the nest. */
static VALUE watch_methods(VALUE nest)
{
    VALUE methods = rb_funcall(nest, rb_intern("methods_of_run"), 0), watching = rb_ary_new();
    for (long i = 0; i < RARRAY_LEN(methods); i++) {
        VALUE tracepoint = rb_tracepoint_new(0, RUBY_EVENT_CALL | RUBY_EVENT_RETURN, watch_tracepoint, NULL);
        VALUE target = rb_hash_new();
        rb_rat_set(target, "target", RARRAY_AREF(methods, i));
        rb_funcallv_kw(tracepoint, rb_intern("enable"), 1, &target, RB_PASS_KEYWORDS);
        rb_ary_push(watching, tracepoint);
    }
    return watching;
}

static VALUE watch_no_more(VALUE watching)
{
    for (long i = 0; i < RARRAY_LEN(watching); i++)
        rb_tracepoint_disable(RARRAY_AREF(watching, i));
    return Qnil;
}

static VALUE call_watched(VALUE nest)
{
    VALUE watching = watch_methods(nest);
    return rb_ensure(call_nest, nest, watch_no_more, watching);
}

size_t rb_rat_canary_run(VALUE nest, bool c_events, bool scoped, const char **why, int *interrupted)
{
    size_t frame_bytes = 0;
#if RUBY_API_VERSION_CODE < 30100 || RUBY_API_VERSION_CODE > 40099
    *why = "this Ruby's frame layout is not known";
    return 0;
#endif
    if (pipe(peek_pipe) != 0) {
        *why = "no file descriptors left";
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(peek_pipe[i], F_SETFD, FD_CLOEXEC);
        fcntl(peek_pipe[i], F_SETFL, O_NONBLOCK);
    }
    sample_count = 0;
    watched = rb_thread_current();
    rb_event_hook_func_t function = (rb_event_hook_func_t)(void *)watch;
    rb_event_flag_t events = RUBY_EVENT_CALL | RUBY_EVENT_RETURN;
    if (c_events)
        events |= RUBY_EVENT_C_CALL | RUBY_EVENT_C_RETURN;
    if (!scoped)
        rb_add_event_hook2(function, events, Qnil, RUBY_EVENT_HOOK_FLAG_SAFE | RUBY_EVENT_HOOK_FLAG_RAW_ARG);
    rb_protect(scoped ? call_watched : call_nest, nest, interrupted);
    if (!scoped)
        rb_remove_event_hook(function);
    *why = *interrupted ? "the nest was interrupted" : judge(c_events, &frame_bytes);
    close(peek_pipe[0]);
    close(peek_pipe[1]);
    return *why == NULL ? frame_bytes : 0;
}

/* ---------------------------------------------------------------- while recording */

#define SEEN_CALLS 8  /* of Canary.run, at least, by a hook of the whole process */
#define SEEN_C_CALLS 1
#define SEEN_SITES 3  /* by the TracePoints of a scoped recording: leaf twice, body once */

uint32_t rb_rat_canary_prove(VALUE nest, struct rb_rat_agent *agent)
{
    bool scoped = agent->hot->recorder.scoped, c_events = !scoped && (agent->events & RUBY_EVENT_C_CALL) != 0;
    uint64_t expected = scoped ? SEEN_SITES : SEEN_CALLS;
    uint64_t calls = agent->hidden_calls, returns = agent->hidden_returns;
    uint64_t c_calls = agent->hidden_c_calls, c_returns = agent->hidden_c_returns;
    call_nest(nest);
    uint32_t blind = 0;
    if (agent->hidden_calls - calls < expected)
        blind |= RAT_BLIND_CALL;
    if (agent->hidden_returns - returns < expected)
        blind |= RAT_BLIND_RETURN;
    if (c_events && agent->hidden_c_calls - c_calls < SEEN_C_CALLS)
        blind |= RAT_BLIND_C_CALL;
    if (c_events && agent->hidden_c_returns - c_returns < SEEN_C_CALLS)
        blind |= RAT_BLIND_C_RETURN;
    if (scoped && !RTEST(rb_funcall(nest, rb_intern("compiles_seen?"), 0)))
        blind |= RAT_BLIND_SCRIPT_COMPILED;
    return blind;
}

VALUE rb_rat_blind_names(uint32_t blind)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } names[] = {
        {RAT_BLIND_CALL, "call"},         {RAT_BLIND_RETURN, "return"},
        {RAT_BLIND_C_CALL, "c_call"},     {RAT_BLIND_C_RETURN, "c_return"},
        {RAT_BLIND_SCRIPT_COMPILED, "script_compiled"},
    };
    VALUE list = rb_ary_new();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((blind & names[i].bit) != 0)
            rb_ary_push(list, rb_str_new_cstr(names[i].name));
    return blind != 0 ? list : Qnil;
}
