#include "ruby/rb_hook.h"

#include <ruby/debug.h>

#include "ruby/rb_base.h"
#include "ruby/rb_context.h"
#include "ruby/rb_cost.h"
#include "ruby/rb_name.h"
#include "ruby/rb_public_path.h"
#include "ruby/rb_stack.h"

/* Frame words. The trace argument of a raw hook starts, unchanged from Ruby 3.1 to 4.0, with
 *
 *     event (32 bit) | ec | cfp | self | id | called_id | klass | data
 *
 *   ec    identity of the context (fiber): compared, never followed
 *   cfp   address of the control frame, identity of the frame. A return carries the word of its call; deeper frames have
 *         lower addresses, one frame apart or more. C events carry the caller's: the C frame is not pushed yet, or popped
 *   id, called_id, klass   filled for C events only
 *   cfp's fifth word is ep; ep[-2] is the method entry at a call event (later it may become a wrapper)
 *
 * rb_canary.c proves all this at start, one call in AUDIT is proved again by the public calls, and where either fails
 * rb_public_path.c does the same job more slowly.
 *
 * A C function's entry carries the word its frame would have, caller - frame_bytes. Its c_return carries the caller's
 * word when it returned and its own when raise, throw or break took it off.
 *
 * The hot lines are rat_hook. Everything that may allocate is in the cold functions, before a slot is entered; a GC in
 * there empties the cache and `ec`, so nothing is kept across it.
 */
enum { WORD_EC = 1, WORD_CFP = 2, WORD_ID = 4, WORD_CALLED = 5, WORD_OWNER = 6, CFP_EP = 4 };
#define EP_METHOD_ENTRY (-2)
#define AUDIT 4096u

#define COLD __attribute__((noinline, cold))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline __attribute__((always_inline)) uintptr_t method_entry(uintptr_t cfp)
{
    const uintptr_t *ep = (const uintptr_t *)((const uintptr_t *)cfp)[CFP_EP];
    return ep[EP_METHOD_ENTRY];
}

static rb_trace_arg_t *public_arg(const uintptr_t *arg)
{
    return (rb_trace_arg_t *)(uintptr_t)arg;
}

/* Named for the disassembly check; `data` is the hot page. */
rb_rat_hook rat_hook_words, rat_hook_words_strong;

/* ---------------------------------------------------------------- frame words: cold */

/* A method's or C function's frame has a method entry; a block, rescue or ensure body has none. So an entry whose frame
 * has none is one that an overflow took off, and now the body of its caller stands there: rb_profile_frames cannot
 * tell, because it shows such a body as its method. Every frame at or above the current one is live memory. */
static uint32_t drop_replaced(struct rb_rat_agent *agent)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    uint32_t above = rat_recorder_above_base(recorder), removed = 0;
    struct rat_entry *keep = recorder->top - above + 1;
    for (struct rat_entry *at = keep; at <= recorder->top; at++) {
        if (method_entry(at->word) != 0)
            *keep++ = *at;
        else
            removed++;
    }
    recorder->top = keep - 1;
    return removed;
}

/* Before a call of the frame `word` is told: entries at or below it are gone; after that, doubt. */
static void drop_gone(struct rb_rat_agent *agent, uintptr_t word, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    bool dropped = recorder->top->word <= word && rat_recorder_drop_stale(recorder, word, now) > 0;
    if (dropped)
        rat_recorder_doubt(recorder);
    if (!rat_recorder_doubts(recorder))
        return;
    uint32_t removed = drop_replaced(agent) + (dropped ? rb_rat_stack_verify(recorder, agent) : 0);
    if (removed > 0)
        rat_recorder_repair(recorder, now);
    rat_recorder_checked(recorder, removed == 0);
}

/* For the rest of the process: the words told something else than the public calls. What the shadow holds cannot be
 * believed, so each context starts again from a base. */
static void to_public_path(struct rb_rat_agent *agent, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    agent->words = false;
    rat_recorder_note(recorder, RAT_NOTE_PUBLIC_PATH, (uint32_t)agent->audits, now);
    rat_recorder_restart(recorder);
    rat_recorder_repair(recorder, now);
    recorder->ec = 0;
}

static int32_t name_of_call(struct rb_rat_agent *agent, const uintptr_t *arg, uintptr_t entry, uint64_t now)
{
    struct rb_rat_hot *hot = agent->hot;
    int32_t id = rb_rat_name_event(agent->names, public_arg(arg), false);
    struct rb_rat_cached *cached = rb_rat_cache_slot(hot, entry);
    if (hot->recorder.audit == 0) {
        hot->recorder.audit = AUDIT;
        agent->audits++;
        /* what the cache says of this entry must be what the public calls say */
        if (cached->id != 0 && cached->key == entry && cached->id != id) {
            agent->audit_failures++;
            to_public_path(agent, now);
            return id;
        }
    }
    *cached = (struct rb_rat_cached){.key = entry, .id = id};
    hot->recorder.ec = arg[WORD_EC]; /* a GC in between emptied it, and we are still here */
    return id;
}

/* Every other audit is preceded by a call that is timed, on the way that most take. */
static void time_call(struct rb_rat_agent *agent, const uintptr_t *arg)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    rb_rat_hook *record = recorder->lane.strong ? rat_hook_words_strong : rat_hook_words;
    recorder->audit = 2; /* the next one is audited */
    uint64_t from = rat_clock_ticks(recorder->clock);
    record(RB_RAT_DATA_OF(agent->hot), (const rb_trace_arg_t *)arg);
    rb_rat_cost_sample(rat_clock_ticks(recorder->clock) - from);
}

static COLD void call_cold(struct rb_rat_hot *hot, const uintptr_t *arg, uint64_t now)
{
    struct rb_rat_agent *agent = rb_rat_agent_of(hot);
    struct rat_recorder *recorder = &hot->recorder;
    if (recorder->audit == 0 && agent->main && !recorder->scoped && (agent->timed = !agent->timed)) {
        time_call(agent, arg);
        return;
    }
    agent->calling = true;
    uintptr_t word = arg[WORD_CFP], entry = method_entry(word);
    const struct rb_rat_cached *cached = rb_rat_cache_slot(hot, entry);
    int32_t id = cached->key == entry && cached->id != 0 && recorder->audit != 0
        ? cached->id
        : name_of_call(agent, arg, entry, now);
    if (!agent->words)
        return; /* the audit has just refused; the shadow starts again from a base */
    agent->hidden_calls += id < 0;
    drop_gone(agent, word, now);
    if (recorder->top->word <= word && rat_recorder_above_base(recorder) == 0) {
        rb_rat_base_call(agent, 1, word, now);
        recorder->ec = arg[WORD_EC];
    }
    rat_recorder_call(recorder, RAT_EVENT_CALL, word, id > 0 ? (uint32_t)id : RAT_FRAME_HIDDEN, RAT_FRAME_INSTANCE,
                      now);
}

static COLD void return_cold(struct rb_rat_hot *hot, const uintptr_t *arg, uint64_t now)
{
    struct rb_rat_agent *agent = rb_rat_agent_of(hot);
    agent->calling = false;
    int64_t depth = rat_recorder_find(&hot->recorder, arg[WORD_CFP]);
    agent->hidden_returns += depth >= 0 && hot->recorder.top[-depth].id == RAT_FRAME_HIDDEN;
    if (depth >= 0)
        rat_recorder_return(&hot->recorder, RAT_EVENT_RETURN, (uint32_t)depth, now);
    else
        rb_rat_base_return(agent, false, public_arg(arg), arg[WORD_CFP], now);
    hot->recorder.ec = arg[WORD_EC];
}

static COLD void c_call_cold(struct rb_rat_hot *hot, const uintptr_t *arg, uint64_t now)
{
    struct rb_rat_agent *agent = rb_rat_agent_of(hot);
    agent->calling = true;
    struct rat_recorder *recorder = &hot->recorder;
    uintptr_t word = arg[WORD_CFP] - hot->frame_bytes;
    struct rb_rat_c_cached *cached = rb_rat_c_cache_slot(hot, arg[WORD_OWNER], arg[WORD_CALLED]);
    int32_t id = cached->id;
    if (id == 0 || cached->owner != arg[WORD_OWNER] || cached->called != arg[WORD_CALLED]) {
        id = rb_rat_name_c(agent->names, (VALUE)arg[WORD_OWNER], (ID)arg[WORD_ID], (ID)arg[WORD_CALLED]);
        *cached = (struct rb_rat_c_cached){.owner = arg[WORD_OWNER], .called = arg[WORD_CALLED], .id = id};
        recorder->ec = arg[WORD_EC];
    }
    drop_gone(agent, word, now);
    if (recorder->top->word <= word && rat_recorder_above_base(recorder) == 0) {
        rb_rat_base_call(agent, 0, word, now);
        recorder->ec = arg[WORD_EC];
    }
    bool told = id > 0 && !rat_recorder_is_in_hidden(recorder, arg[WORD_CFP]);
    agent->hidden_c_calls += !told;
    rat_recorder_call(recorder, RAT_EVENT_C_CALL, word, told ? (uint32_t)id : RAT_FRAME_HIDDEN, RAT_FRAME_C_INSTANCE,
                      now);
}

static COLD void c_return_cold(struct rb_rat_hot *hot, const uintptr_t *arg, uint64_t now)
{
    struct rb_rat_agent *agent = rb_rat_agent_of(hot);
    agent->calling = false;
    struct rat_recorder *recorder = &hot->recorder;
    uintptr_t word = arg[WORD_CFP];
    int64_t depth = recorder->top->word == word && recorder->top->kind == RAT_FRAME_C_INSTANCE
        ? 0 /* unwound: its own word */
        : rat_recorder_find(recorder, word - hot->frame_bytes);
    if (depth < 0) {
        depth = rat_recorder_find(recorder, word);
        if (depth >= 0 && recorder->top[-depth].kind != RAT_FRAME_C_INSTANCE)
            depth = -1; /* the caller itself: this function's call was never seen */
    }
    agent->hidden_c_returns += depth >= 0 && recorder->top[-depth].id == RAT_FRAME_HIDDEN;
    if (depth >= 0)
        rat_recorder_return(recorder, RAT_EVENT_C_RETURN, (uint32_t)depth, now);
    else
        rb_rat_base_return(agent, true, public_arg(arg), word, now);
    recorder->ec = arg[WORD_EC];
}

/* ---------------------------------------------------------------- the public path */

static COLD void time_public(struct rb_rat_agent *agent, rb_trace_arg_t *arg, rb_event_flag_t event, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    recorder->audit = RB_RAT_COST_SAMPLE;
    rb_rat_public_event(agent, arg, event, now);
    if (agent->main)
        rb_rat_cost_sample(rat_clock_ticks(recorder->clock) - now);
}

/* Nothing is audited here, so that count says which event is timed. */
static inline void public_event(struct rb_rat_hot *hot, rb_trace_arg_t *arg, rb_event_flag_t event, uint64_t now)
{
    if (UNLIKELY(--hot->recorder.audit == 0))
        time_public(rb_rat_agent_of(hot), arg, event, now);
    else
        rb_rat_public_event(rb_rat_agent_of(hot), arg, event, now);
}

/* ---------------------------------------------------------------- the hook */

#define BEGIN_EVENTS (RUBY_EVENT_THREAD_BEGIN | RUBY_EVENT_FIBER_SWITCH)

/* A thread or a fiber is new: nothing is on its stack, which nobody could tell at its first call. In the same hook as
 * the calls, because the VM asks every hook at every event. */
static COLD void begin_event(struct rb_rat_agent *agent, rb_event_flag_t event)
{
    VALUE frames[2];
    agent->stack_bytes = 0; /* its stack may have been another's */
    if (!rb_rat_agent_live(agent))
        return;
    if (event == RUBY_EVENT_THREAD_BEGIN || rb_profile_frames(0, 2, frames, NULL) <= 1)
        rb_rat_context_begin(agent);
}

/* Another context than the last event's, or a GC has run, or this is a forked child, or the public path. */
static COLD void elsewhere(struct rb_rat_hot *hot, const uintptr_t *arg, uint64_t now)
{
    struct rb_rat_agent *agent = rb_rat_agent_of(hot);
    rb_event_flag_t event = (rb_event_flag_t)(uint32_t)arg[0];
    if ((event & BEGIN_EVENTS) != 0) {
        begin_event(agent, event);
        return;
    }
    if (!agent->words) {
        public_event(hot, public_arg(arg), event, now);
        return;
    }
    if (!rb_rat_context_enter(agent, arg[WORD_EC], false, now))
        return;
    now = rat_clock_ticks(hot->recorder.clock); /* a child has just chosen its own */
    switch (event) {
    case RUBY_EVENT_CALL:
        call_cold(hot, arg, now);
        break;
    case RUBY_EVENT_RETURN:
        return_cold(hot, arg, now);
        break;
    case RUBY_EVENT_C_CALL:
        c_call_cold(hot, arg, now);
        break;
    case RUBY_EVENT_C_RETURN:
        c_return_cold(hot, arg, now);
        break;
    }
}

/* The commonest event is asked for first. Each way ends in the last store or in a jump to a cold function, so that
 * little is saved on the stack. */
static inline __attribute__((always_inline)) void rat_hook(struct rb_rat_hot *hot, const uintptr_t *arg,
                                                           const bool strong)
{
    struct rat_recorder *recorder = &hot->recorder;
    uint64_t now = rat_clock_ticks(recorder->clock);
    uintptr_t word = arg[WORD_CFP];
    uint32_t event = (uint32_t)arg[0];
    if (UNLIKELY(recorder->ec != arg[WORD_EC])) {
        elsewhere(hot, arg, now);
    } else if (event == RUBY_EVENT_CALL) {
        uintptr_t entry = method_entry(word);
        const struct rb_rat_cached *cached = rb_rat_cache_slot(hot, entry);
        int32_t id = cached->id;
        if (LIKELY(cached->key == entry && id > 0 && recorder->top->word > word &&
                   recorder->top < recorder->limit && --recorder->audit != 0) &&
            LIKELY(rat_lane_put(&recorder->lane, rat_event_word(RAT_EVENT_CALL, (uint32_t)id), now, strong)))
            *++recorder->top = (struct rat_entry){.word = word, .id = (uint32_t)id, .kind = RAT_FRAME_INSTANCE};
        else
            call_cold(hot, arg, now);
    } else if (event == RUBY_EVENT_RETURN) {
        if (LIKELY(recorder->top->word == word && recorder->top->id != RAT_FRAME_HIDDEN) &&
            LIKELY(rat_lane_put(&recorder->lane, rat_event_word(RAT_EVENT_RETURN, 0), now, strong)))
            recorder->top--;
        else
            return_cold(hot, arg, now);
    } else if (event == RUBY_EVENT_C_CALL) {
        const struct rb_rat_c_cached *cached = rb_rat_c_cache_slot(hot, arg[WORD_OWNER], arg[WORD_CALLED]);
        int32_t id = cached->id;
        word -= hot->frame_bytes;
        if (LIKELY(cached->owner == arg[WORD_OWNER] && cached->called == arg[WORD_CALLED] && id > 0 &&
                   recorder->top->word > word && recorder->top < recorder->limit &&
                   !rat_recorder_is_in_hidden(recorder, word + hot->frame_bytes)) &&
            LIKELY(rat_lane_put(&recorder->lane, rat_event_word(RAT_EVENT_C_CALL, (uint32_t)id), now, strong)))
            *++recorder->top = (struct rat_entry){.word = word, .id = (uint32_t)id, .kind = RAT_FRAME_C_INSTANCE};
        else
            c_call_cold(hot, arg, now);
    } else if (event == RUBY_EVENT_C_RETURN) {
        if (LIKELY(recorder->top->word == word - hot->frame_bytes && recorder->top->id != RAT_FRAME_HIDDEN &&
                   recorder->top->kind == RAT_FRAME_C_INSTANCE) &&
            LIKELY(rat_lane_put(&recorder->lane, rat_event_word(RAT_EVENT_C_RETURN, 0), now, strong)))
            recorder->top--;
        else
            c_return_cold(hot, arg, now);
    } else {
        elsewhere(hot, arg, now);
    }
}

void rat_hook_words(VALUE data, const rb_trace_arg_t *arg)
{
    rat_hook(RB_RAT_HOT_OF(data), (const uintptr_t *)arg, false);
}

void rat_hook_words_strong(VALUE data, const rb_trace_arg_t *arg)
{
    rat_hook(RB_RAT_HOT_OF(data), (const uintptr_t *)arg, true);
}

static void rat_hook_public(VALUE data, const rb_trace_arg_t *arg)
{
    struct rb_rat_hot *hot = RB_RAT_HOT_OF(data);
    rb_trace_arg_t *event_arg = public_arg((const uintptr_t *)arg);
    rb_event_flag_t event = rb_tracearg_event_flag(event_arg);
    if ((event & BEGIN_EVENTS) != 0)
        begin_event(rb_rat_agent_of(hot), event);
    else
        public_event(hot, event_arg, event, rat_clock_ticks(hot->recorder.clock));
}

rb_rat_hook *rb_rat_hook_function(const struct rb_rat_agent *agent)
{
    if (!agent->words)
        return rat_hook_public;
    return agent->hot->recorder.lane.strong ? rat_hook_words_strong : rat_hook_words;
}

#define HOOK_FLAGS (RUBY_EVENT_HOOK_FLAG_SAFE | RUBY_EVENT_HOOK_FLAG_RAW_ARG)

/* Holds a place. Each Ractor has hooks of its own, but the VM has one set of events it looks for, and takes it from the
 * Ractor whose hooks changed last, which is also one whose memory is freed. With no hook left in that one, all the others
 * see nothing more, until somebody's hooks change. So a Ractor that detaches keeps an empty hook; and because most
 * Ractors never had one, the main Ractor's are changed once after each GC. What is called between the freeing of such a
 * Ractor, in a lazy sweep, and the next GC is not seen. */
static void rat_hook_nothing(VALUE data, const rb_trace_arg_t *arg)
{
    (void)data, (void)arg;
}

#define NOTHING ((rb_event_hook_func_t)(void *)rat_hook_nothing)

static bool looking; /* adding a hook may cause a GC, which must not ask for another look */

static void look_again(void *unused)
{
    (void)unused;
    struct rb_rat_agent *agent = rb_rat_main_agent;
    if (!agent->hooked || rb_rat_agent_current() != agent)
        return;
    looking = true;
    rb_add_event_hook2(NOTHING, agent->events | BEGIN_EVENTS, Qfalse, HOOK_FLAGS);
    (void)rb_remove_event_hook_with_data(NOTHING, Qfalse);
    looking = false;
}

#ifdef HAVE_RB_POSTPONED_JOB_PREREGISTER
static rb_postponed_job_handle_t look_again_job;

static void look_again_soon(void)
{
    if (rb_rat_main_agent->hooked && !looking)
        rb_postponed_job_trigger(look_again_job);
}
#else
static void look_again_soon(void)
{
    if (rb_rat_main_agent->hooked && !looking)
        (void)rb_postponed_job_register_one(0, look_again, NULL); /* as the VM does in a GC */
}
#endif

void rb_rat_hook_init(void)
{
#ifdef HAVE_RB_POSTPONED_JOB_PREREGISTER
    look_again_job = rb_postponed_job_preregister(0, look_again, NULL);
    if (look_again_job == POSTPONED_JOB_HANDLE_INVALID)
        return; /* all are taken: a blind hook is found by the canary only */
#endif
    rb_rat_agent_on_gc = look_again_soon;
}

void rb_rat_hook_install(struct rb_rat_agent *agent)
{
    agent->hot->recorder.audit = AUDIT;
    rb_event_hook_func_t function = (rb_event_hook_func_t)(void *)rb_rat_hook_function(agent);
    rb_add_event_hook2(function, agent->events | BEGIN_EVENTS, RB_RAT_DATA_OF(agent->hot), HOOK_FLAGS);
    (void)rb_remove_event_hook_with_data(NOTHING, Qfalse);
    agent->hooked = true;
}

void rb_rat_hook_retire(struct rb_rat_agent *agent)
{
    (void)rb_remove_event_hook_with_data(NOTHING, Qfalse);
    rb_add_event_hook2(NOTHING, agent->events | BEGIN_EVENTS, Qfalse, HOOK_FLAGS);
    rb_rat_hook_remove(agent);
}

void rb_rat_hook_remove(struct rb_rat_agent *agent)
{
    VALUE data = RB_RAT_DATA_OF(agent->hot);
    rb_remove_event_hook_with_data((rb_event_hook_func_t)(void *)rat_hook_words, data);
    rb_remove_event_hook_with_data((rb_event_hook_func_t)(void *)rat_hook_words_strong, data);
    rb_remove_event_hook_with_data((rb_event_hook_func_t)(void *)rat_hook_public, data);
    agent->hooked = false;
}
