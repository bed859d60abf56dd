#include "ruby/rb_public_path.h"

#include "ruby/rb_base.h"
#include "ruby/rb_context.h"
#include "ruby/rb_name.h"
#include "ruby/rb_stack.h"

#define DEEP 64u /* from here on, look for frames lost to an overflow at every event */

/* The method frame that runs, as rb_profile_frames names it: it stays the same as long as the frame lives, but for a
 * define_method body, whose value is its block's and may move under compaction. 0 = none. */
static uintptr_t frame_word(void)
{
    VALUE frame;
    return rb_profile_frames(0, 1, &frame, NULL) == 1 ? (uintptr_t)frame : 0;
}

/* Overflows unwind frames without an event, and without words nothing says so: count, and doubt. */
static void repair(struct rb_rat_agent *agent, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    uint32_t depth = rat_recorder_depth(recorder);
    bool missing = depth > DEEP && !rb_rat_stack_at_least(agent, (int)depth);
    if (missing)
        rat_recorder_doubt(recorder);
    if (!rat_recorder_doubts(recorder))
        return;
    uint32_t removed = rb_rat_stack_verify(recorder, agent);
    if (removed > 0)
        rat_recorder_repair(recorder, now);
    rat_recorder_checked(recorder, removed == 0);
}

static int32_t name_of_call(struct rb_rat_agent *agent, rb_trace_arg_t *arg, uintptr_t word)
{
    const struct rb_rat_cached *hit = rb_rat_cache_slot(agent->hot, word);
    if (hit->key == word && hit->id != 0)
        return hit->id;
    int32_t id = rb_rat_name_event(agent->names, arg, false);
    /* a define_method body's value is the block's, one for all methods made of it: never cached. The frame may have
     * moved if a GC ran: ask again. */
    VALUE frame = (VALUE)frame_word();
    if (frame != 0 && !NIL_P(rb_profile_frame_method_name(frame)))
        *rb_rat_cache_slot(agent->hot, frame) = (struct rb_rat_cached){.key = frame, .id = id};
    return id;
}

static void tell_call(struct rb_rat_agent *agent, rb_trace_arg_t *arg, bool is_c, uint64_t now)
{
    agent->calling = true;
    struct rat_recorder *recorder = &agent->hot->recorder;
    int32_t id = is_c ? rb_rat_name_event(agent->names, arg, true) : name_of_call(agent, arg, frame_word());
    repair(agent, now);
    if (rat_recorder_above_base(recorder) == 0)
        rb_rat_base_call(agent, is_c ? 0 : 1, 0, now);
    uintptr_t word = frame_word(); /* of a C event: the caller's */
    bool told = id > 0 && !(is_c && rat_recorder_is_in_hidden(recorder, word));
    *(is_c ? &agent->hidden_c_calls : &agent->hidden_calls) += !told;
    rat_recorder_call(recorder, is_c ? RAT_EVENT_C_CALL : RAT_EVENT_CALL, is_c ? 0 : word,
                      told ? (uint32_t)id : RAT_FRAME_HIDDEN, is_c ? RAT_FRAME_C_INSTANCE : RAT_FRAME_INSTANCE, now);
}

/* The entry this return ends: its depth below the top, or -1. A C function is known by its id; a method by its frame's
 * value, or, if that can have moved, by its name and line. */
static int64_t find_entry(struct rb_rat_agent *agent, rb_trace_arg_t *arg, bool is_c)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    if (is_c) {
        if (recorder->top->kind == RAT_FRAME_C_INSTANCE && recorder->top->id == RAT_FRAME_HIDDEN)
            return 0;
        int32_t id = rb_rat_name_event(agent->names, arg, true);
        return rat_recorder_find_id(recorder, id > 0 ? (uint32_t)id : RAT_FRAME_HIDDEN);
    }
    uintptr_t word = frame_word();
    int64_t depth = word != 0 ? rat_recorder_find(recorder, word) : -1;
    if (depth >= 0 || word == 0 || !NIL_P(rb_profile_frame_method_name((VALUE)word)))
        return depth;
    VALUE line = rb_profile_frame_first_lineno((VALUE)word);
    VALUE method = rb_tracearg_method_id(arg);
    rat_name_id name = SYMBOL_P(method) ? rb_rat_name_string(agent->names, rb_sym2str(method)) : 0;
    for (uint32_t at = 0; at < rat_recorder_above_base(recorder); at++) {
        const struct rat_entry *entry = recorder->top - at;
        const struct rat_frame_entry *frame = rat_dict_frame_entry(recorder->dict, entry->id);
        if (entry->kind == RAT_FRAME_INSTANCE && frame != NULL && frame->method == name &&
            (VALUE)INT2FIX((int)frame->line) == line)
            return at;
    }
    return -1;
}

static void tell_return(struct rb_rat_agent *agent, rb_trace_arg_t *arg, bool is_c, uint64_t now)
{
    agent->calling = false;
    struct rat_recorder *recorder = &agent->hot->recorder;
    repair(agent, now);
    int64_t depth = find_entry(agent, arg, is_c);
    if (depth < 0) {
        rb_rat_base_return(agent, is_c, arg, 0, now);
        return;
    }
    *(is_c ? &agent->hidden_c_returns : &agent->hidden_returns) += recorder->top[-depth].id == RAT_FRAME_HIDDEN;
    rat_recorder_return(recorder, is_c ? RAT_EVENT_C_RETURN : RAT_EVENT_RETURN, (uint32_t)depth, now);
    if (depth > 0)
        rat_recorder_doubt(recorder);
}

/* What most events are: a known method's call, or the return of the top frame, with nothing in doubt. True: told. */
static bool put_plain(struct rb_rat_agent *agent, rb_event_flag_t event, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    struct rat_entry *top = recorder->top, *entries = recorder->context->entries;
    if (top >= recorder->limit || top <= entries + recorder->context->base || top >= entries + DEEP)
        return false;
    uintptr_t word = frame_word();
    if (event == RUBY_EVENT_CALL) {
        const struct rb_rat_cached *cached = rb_rat_cache_slot(agent->hot, word);
        int32_t id = cached->id;
        if (cached->key != word || id <= 0 ||
            !rat_lane_put(&recorder->lane, rat_event_word(RAT_EVENT_CALL, (uint32_t)id), now, recorder->lane.strong))
            return false;
        *++recorder->top = (struct rat_entry){.word = word, .id = (uint32_t)id, .kind = RAT_FRAME_INSTANCE};
        return true;
    }
    if (word == 0 || top->word != word || top->id == RAT_FRAME_HIDDEN ||
        !rat_lane_put(&recorder->lane, rat_event_word(RAT_EVENT_RETURN, 0), now, recorder->lane.strong))
        return false;
    recorder->top--;
    return true;
}

static __attribute__((noinline, cold)) void stack_met(struct rb_rat_agent *agent, uintptr_t here)
{
    uintptr_t end = agent->stack_from + agent->stack_bytes;
    if (agent->stack_bytes == 0 || here < agent->stack_from)
        agent->stack_from = here;
    agent->stack_bytes = (agent->stack_bytes == 0 || here >= end ? here + 1 : end) - agent->stack_from;
}

/* Whether this is the context of the last event. rb_fiber_current says so, and is a good part of what an event costs
 * here. Each thread and each fiber has a machine stack of its own, and an address between two at which a context was met
 * is in its stack. The memory may go to another thread or fiber later, which the hook hears of before its first call;
 * where only some methods are traced, it does not. */
static inline bool context_stays(struct rb_rat_agent *agent)
{
    const struct rat_recorder *recorder = &agent->hot->recorder;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    if (__builtin_expect(recorder->ec != 0 && here - agent->stack_from < agent->stack_bytes, 1))
        return true;
    if (!rb_rat_agent_live(agent) || recorder->context == NULL || recorder->ec != rb_fiber_current())
        return false;
    if (!recorder->scoped)
        stack_met(agent, here);
    return true;
}

void rb_rat_public_event(struct rb_rat_agent *agent, rb_trace_arg_t *arg, rb_event_flag_t event, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    if (!context_stays(agent)) {
        agent->stack_bytes = 0;
        if (!rb_rat_context_enter(agent, rb_fiber_current(), false, now))
            return;
        now = rat_clock_ticks(recorder->clock);
    }
    if ((event & (RUBY_EVENT_CALL | RUBY_EVENT_RETURN)) != 0 && put_plain(agent, event, now))
        return;
    switch (event) {
    case RUBY_EVENT_CALL:
        tell_call(agent, arg, false, now);
        break;
    case RUBY_EVENT_RETURN:
        tell_return(agent, arg, false, now);
        break;
    case RUBY_EVENT_C_CALL:
        tell_call(agent, arg, true, now);
        break;
    case RUBY_EVENT_C_RETURN:
        tell_return(agent, arg, true, now);
        break;
    }
}

uintptr_t rb_rat_public_frame(void)
{
    return frame_word();
}
