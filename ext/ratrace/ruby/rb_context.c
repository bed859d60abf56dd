#include "ruby/rb_context.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "ruby/rb_name.h"
#include "ruby/rb_session.h"

static ID id_context, id_thread;
static VALUE ask_name; /* Thread#name's bind_call, both as they were when ratrace was loaded */

/* What hangs on a fiber. */
struct fiber_state {
    struct rat_context *context;
    struct rb_rat_agent *agent;
    uint64_t generation; /* of the session that `context` belongs to */
};

static void fiber_state_free(void *data)
{
    struct fiber_state *state = data;
    bool ours = state->agent != NULL && state->generation == state->agent->generation &&
        rb_rat_agent_live(state->agent);
    if (state->context != NULL)
        rat_context_release(state->context, ours ? &state->agent->hot->recorder : NULL);
    ruby_xfree(state);
}

static size_t fiber_state_memsize(const void *data)
{
    const struct fiber_state *state = data;
    size_t entries = state->context != NULL ? (size_t)(state->context->limit - state->context->entries) + 1 : 0;
    return sizeof *state + entries * sizeof(struct rat_entry);
}

static const rb_data_type_t fiber_state_type = {
    .wrap_struct_name = "ratrace/context",
    .function = {.dfree = fiber_state_free, .dsize = fiber_state_memsize},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

void rb_rat_context_init(void)
{
    id_context = rb_intern("__ratrace_context__"); /* no @: Ruby code cannot see it */
    id_thread = rb_intern("__ratrace_thread__");
    VALUE name = rb_funcall(rb_cThread, rb_intern("instance_method"), 1, ID2SYM(rb_intern("name")));
    ask_name = rb_obj_method(name, ID2SYM(rb_intern("bind_call")));
    rb_gc_register_mark_object(ask_name);
}

/* ---------------------------------------------------------------- what hangs on an object */

static VALUE hung_on(struct rb_rat_agent *agent, VALUE object, ID name)
{
    if (!RB_OBJ_FROZEN_RAW(object))
        return rb_ivar_get(object, name);
    VALUE state = rb_ivar_get(object, name); /* hung on it before it was frozen */
    for (long i = 0; NIL_P(state) && i < RARRAY_LEN(agent->odd); i++) {
        VALUE pair = RARRAY_AREF(agent->odd, i);
        if (RARRAY_AREF(pair, 0) == object)
            state = RARRAY_AREF(pair, 1);
    }
    return state;
}

/* The list keeps what is on it alive, so nothing stays there beyond the fiber it was met in. */
static void forget_ended(struct rb_rat_agent *agent)
{
    for (long i = RARRAY_LEN(agent->odd) - 1; i >= 0; i--)
        if (!RTEST(rb_fiber_alive_p(RARRAY_AREF(RARRAY_AREF(agent->odd, i), 2))))
            rb_ary_delete_at(agent->odd, i);
}

static void hang_on(struct rb_rat_agent *agent, VALUE object, ID name, VALUE state)
{
    if (!RB_OBJ_FROZEN_RAW(object)) {
        rb_ivar_set(object, name, state);
        return;
    }
    for (long i = 0; i < RARRAY_LEN(agent->odd); i++) {
        VALUE pair = RARRAY_AREF(agent->odd, i);
        if (RARRAY_AREF(pair, 0) == object) {
            rb_ary_store(pair, 1, state);
            return;
        }
    }
    forget_ended(agent);
    rb_ary_push(agent->odd, rb_ary_new_from_args(3, object, state, rb_fiber_current()));
}

/* ---------------------------------------------------------------- threads */

/* Calls Ruby, so other threads may run, and stop the recording, before it returns; and an interrupt that is due may be
 * raised here, in place of the event. It is the thread's: nobody else may end it. */
static VALUE thread_name(struct rb_rat_agent *agent, VALUE thread)
{
    if (thread == rb_thread_main() && agent->main)
        return rb_str_new_cstr("main");
    return rb_method_call(1, &thread, ask_name);
}

static bool has_ended(const struct rb_rat_agent *agent, uint64_t generation)
{
    return !rb_rat_agent_live(agent) || agent->generation != generation;
}

/* Dictionary id of the running thread; 0 = full, or the recording has ended. Kept on the thread as generation and id. */
static rat_context_id thread_id(struct rb_rat_agent *agent, uint64_t now)
{
    VALUE thread = rb_thread_current();
    VALUE state = hung_on(agent, thread, id_thread);
    uint64_t generation = agent->generation, key = (generation & 0xFFFFFF) << 24;
    if (FIXNUM_P(state) && ((uint64_t)FIX2LONG(state) & ~UINT64_C(0xFFFFFF)) == key)
        return (rat_context_id)(FIX2LONG(state) & 0xFFFFFF);
    VALUE name = thread_name(agent, thread);
    if (has_ended(agent, generation))
        return 0;
    struct rat_context_entry entry = {
        .kind = RAT_CONTEXT_THREAD,
        .name = rb_rat_name_string(agent->names, name),
        .lane = agent->hot->recorder.lane_number,
        .os_tid = (uint64_t)syscall(SYS_gettid),
        .seen_ticks = now,
    };
    rat_context_id id = rat_dict_context(rb_rat_names_dict(agent->names), &entry);
    if (id != 0)
        hang_on(agent, thread, id_thread, LONG2FIX((long)(key | id)));
    return id;
}

/* ---------------------------------------------------------------- fibers */

static struct fiber_state *state_of_fiber(struct rb_rat_agent *agent, VALUE fiber, bool fresh)
{
    VALUE hung = hung_on(agent, fiber, id_context);
    struct fiber_state *state;
    if (!NIL_P(hung)) {
        state = rb_check_typeddata(hung, &fiber_state_type);
    } else {
        VALUE wrapped = TypedData_Make_Struct(rb_cObject, struct fiber_state, &fiber_state_type, state);
        state->context = rat_context_new(fresh || agent->hot->recorder.scoped);
        if (state->context == NULL)
            return NULL;
        state->agent = agent;
        state->generation = agent->generation;
        hang_on(agent, fiber, id_context, wrapped);
        RB_GC_GUARD(wrapped);
    }
    if (state->agent != agent || state->generation != agent->generation) {
        rat_context_forget(state->context, agent->hot->recorder.scoped); /* of an earlier session, or of the parent process */
        state->agent = agent;
        state->generation = agent->generation;
    }
    return state;
}

void rb_rat_context_begin(struct rb_rat_agent *agent)
{
    (void)state_of_fiber(agent, rb_fiber_current(), true);
}

bool rb_rat_context_enter(struct rb_rat_agent *agent, uintptr_t ec, bool fresh, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    if (!rb_rat_agent_live(agent) && !rb_rat_session_in_child(agent)) {
        agent->no_context++;
        return false;
    }
    uint64_t generation = agent->generation;
    VALUE fiber = rb_fiber_current();
    struct fiber_state *state = state_of_fiber(agent, fiber, fresh);
    if (state == NULL) {
        rat_lane_drop(&recorder->lane, RAT_DROP_OUT_OF_MEMORY, now);
        return false;
    }
    struct rat_context_entry entry = {
        .kind = RAT_CONTEXT_FIBER,
        .lane = recorder->lane_number,
        .seen_ticks = now,
    };
    if (state->context->id == 0)
        entry.parent = thread_id(agent, now);
    if (has_ended(agent, generation)) {
        agent->no_context++;
        return false;
    }
    rat_recorder_bury(recorder, now);
    if (!rat_recorder_switch(recorder, state->context, &entry, now))
        return false;
    recorder->ec = ec; /* last: a GC above would have emptied it */
    RB_GC_GUARD(fiber);
    return true;
}
