#include "ruby/rb_canary.h"

#include <fcntl.h>
#include <ruby/debug.h>
#include <ruby/version.h>
#include <stdint.h>
#include <unistd.h>

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
    if (sample_count == SAMPLES)
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

size_t rb_rat_canary_run(VALUE nest, bool c_events, const char **why)
{
    size_t frame_bytes = 0;
    int failed;
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
    rb_event_hook_func_t function = (rb_event_hook_func_t)(void *)watch;
    rb_event_flag_t events = RUBY_EVENT_CALL | RUBY_EVENT_RETURN;
    if (c_events)
        events |= RUBY_EVENT_C_CALL | RUBY_EVENT_C_RETURN;
    rb_add_event_hook2(function, events, Qnil, RUBY_EVENT_HOOK_FLAG_SAFE | RUBY_EVENT_HOOK_FLAG_RAW_ARG);
    rb_protect(call_nest, nest, &failed);
    rb_remove_event_hook(function);
    if (failed)
        rb_set_errinfo(Qnil);
    *why = failed ? "the nest raised" : judge(c_events, &frame_bytes);
    close(peek_pipe[0]);
    close(peek_pipe[1]);
    return *why == NULL ? frame_bytes : 0;
}
