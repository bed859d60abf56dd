#include "ruby/rb_base.h"

#include "ruby/rb_name.h"
#include "ruby/rb_stack.h"

/* The current context existed before recording and meets its first event. */
static void base_if_due(struct rb_rat_agent *agent, int own, uint64_t now)
{
    if (agent->hot->recorder.context->base_due)
        rb_rat_stack_take_base(agent, own, now);
}

void rb_rat_base_call(struct rb_rat_agent *agent, int own, uintptr_t word, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    base_if_due(agent, own, now);
    if (recorder->context->base == 0)
        return;
    int count = rb_rat_stack_count(agent);
    if (count >= 0)
        rb_rat_stack_trim_base(agent, count - own, now);
    if (word != 0)
        rat_recorder_settle_base(recorder, word);
}

static bool top_is_named(struct rb_rat_agent *agent, int32_t id)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    const struct rat_frame_entry *base = rat_dict_frame_entry(recorder->dict, recorder->top->id);
    const struct rat_frame_entry *ended = rat_dict_frame_entry(recorder->dict, id > 0 ? (uint32_t)id : 0);
    return base != NULL && ended != NULL && base->method == ended->method;
}

/* For a Ruby method the frame is still counted; a C function's is gone unless it was unwound, and then its name must be
 * the top's. */
void rb_rat_base_return(struct rb_rat_agent *agent, bool is_c, rb_trace_arg_t *arg, uintptr_t word, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    enum rat_event_kind event = is_c ? RAT_EVENT_C_RETURN : RAT_EVENT_RETURN;
    if (rat_recorder_above_base(recorder) > 0) {
        rat_recorder_unmatched(recorder, now); /* frames of ours are open: it cannot be one below them */
        return;
    }
    base_if_due(agent, 0, now);
    int base = (int)recorder->context->base;
    int count = base > 0 ? rb_rat_stack_count(agent) : -1;
    int held = count;
    if (is_c && count >= 0) {
        int32_t id = rb_rat_name_event(agent->names, arg, true);
        held = base > count ? count + 1 : base == count && top_is_named(agent, id) ? count : base + 1;
    }
    if (count < 0 || base < held) {
        rat_recorder_unmatched(recorder, now);
        return;
    }
    rb_rat_stack_trim_base(agent, held, now);
    rat_recorder_return(recorder, event, 0, now);
    if (word != 0)
        rat_recorder_settle_base(recorder, word);
}
