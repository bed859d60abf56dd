#include "ruby/rb_session.h"

#include <pthread.h>
#include <ruby/thread.h>
#include <ruby/version.h>
#include <string.h>
#include <time.h>

#include "deliver/session.h"
#include "ruby/rb_canary.h"
#include "ruby/rb_context.h"
#include "ruby/rb_cost.h"
#include "ruby/rb_governor.h"
#include "ruby/rb_hash.h"
#include "ruby/rb_hook.h"
#include "ruby/rb_options.h"
#include "ruby/rb_pulse.h"
#include "ruby/rb_ship.h"
#include "ruby/rb_site.h"
#include "ruby/rb_stack.h"
#include "ruby/rb_status.h"

/* The session of this process. `generation` counts the agents' openings, so that contexts know whose they are; a
 * forked child counts on from its parent's. Everything here under the GVL of the main Ractor (in a child: of whoever records first).
 *
 * Fork. The child finds the hot page wiped, hence comes to rb_rat_session_in_child with its first event, in whatever
 * fiber forked. It abandons the inherited session (no flush, no unlock, no unmap: the mapping is not there), opens its
 * own with the parent's id, and goes on; the fiber's open frames become its base. A child that records nothing opens
 * nothing. If its session cannot be opened, events are counted and `failure` says why. */
static struct {
    struct rat_session *session;
    _Atomic uint64_t generation;
    _Atomic uint64_t start; /* counts sessions, so that an attached Ractor knows one that was stopped */
    uint64_t id_hi, id_lo; /* the session's; a child cannot ask it any more */
    uint64_t process;       /* rb_rat_process of the one that records */
    uint64_t starting;      /* the process that is at it; a child of it is not */
    bool failed_in_child;
    struct rb_rat_options options;
    uint32_t blind;         /* what the last canary did not see */
    uint64_t canaries;
    size_t frame_bytes; /* from the canary; 0 = refused */
    const char *refused;
    rb_event_flag_t probed; /* events the canary has run with */
    char failure[512];
    _Atomic int users;    /* threads that are inside the session without the GVL: stop waits for them */
} now_running;

/* Ractors run at the same time, and a session opens lanes for one at a time. */
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;

/* The process one of whose threads is writing the end of a recording; 0 = none. Another thread's stop waits for it, so
 * that the process does not exit meanwhile. A forked child is another process and waits for nobody. */
static _Atomic uint64_t ending;

static VALUE canary; /* Ratrace::Canary */

#define RUNNING (now_running.session != NULL)

static bool is_forked(void)
{
    return RUNNING && now_running.process != rb_rat_process();
}

/* In a forked child: the threads that were at it are the parent's. */
static void forget_threads(void)
{
    now_running.users = 0;
    pthread_mutex_init(&attaching, NULL);
}

/* In a forked child: what is inherited is the parent's. */
static void leave_parent(void)
{
    rat_session_abandon(now_running.session);
    now_running.session = NULL;
    forget_threads();
}

/* Another Ractor runs at the same time as a stop, which frees what it would look at. */
static void require_main(const char *doing)
{
    if (rb_rat_agent_current() != rb_rat_main_agent)
        rb_raise(rb_path2class("Ratrace::Error"), "cannot %s: only the main Ractor can", doing);
}

/* ---------------------------------------------------------------- opening and closing an agent */

static enum rat_status agent_open(struct rb_rat_agent *agent)
{
    struct rb_rat_hot *hot = agent->hot;
    struct rat_recorder *recorder = &hot->recorder;
    uint32_t number;
    enum rat_status status = rat_session_open_lane(now_running.session, agent->lane, &recorder->lane, &number);
    if (status != RAT_OK)
        return status;
    struct rat_dict *dict = rat_session_dict(now_running.session);
    agent->generation = ++now_running.generation;
    agent->start = now_running.start;
    agent->events = now_running.options.events;
    agent->words = now_running.frame_bytes != 0;
    hot->frame_bytes = now_running.frame_bytes;
    rb_rat_names_begin(agent->names, dict, &now_running.options.filter);
    rb_rat_agent_forget(agent);
    recorder->verify = rb_rat_stack_verify;
    recorder->owner = agent;
    recorder->audit = 4096;
    recorder->scoped = now_running.options.scoped;
    rat_recorder_init(recorder, number, dict, rat_session_clock(now_running.session));
    if (agent->main) {
        rb_rat_cost_begin(agent, rat_session_ticks_per_s(now_running.session),
                          now_running.options.scoped ? rb_rat_site_gate_ns() : 0);
        rb_rat_governor_begin(now_running.options.max_overhead);
        if (now_running.options.scoped)
            rb_rat_sites_begin(agent);
    }
    return RAT_OK;
}

/* The agent records no more; its ids are void. */
static void agent_close(struct rb_rat_agent *agent)
{
    rat_recorder_reset(&agent->hot->recorder);
    rb_rat_names_end(agent->names);
    rb_rat_agent_forget(agent);
}

/* Run `body`, which answers with `data`, without the GVL. An interrupt that is due (Thread#kill, Timeout, a signal's
 * handler) would be taken before the body runs and might never come back here, with a session half opened or half
 * stopped: then the body runs with the GVL, and the interrupt is taken afterwards. */
static void without_gvl(void *(*body)(void *), void *data)
{
    if (rb_nogvl(body, data, NULL, NULL, RB_NOGVL_INTR_FAIL) == NULL)
        body(data);
}

struct opening {
    struct rat_session *session;
    enum rat_status status;
    char why[512];
};

static void *open_nogvl(void *data)
{
    struct opening *opening = data;
    opening->status =
        rat_session_open(&now_running.options.session, &opening->session, opening->why, sizeof opening->why);
    if (opening->status == RAT_OK)
        rat_session_id(opening->session, &now_running.id_hi, &now_running.id_lo);
    return data;
}

bool rb_rat_session_in_child(struct rb_rat_agent *agent)
{
    if (!is_forked() || now_running.failed_in_child)
        return false;
    now_running.options.session.parent_hi = now_running.id_hi;
    now_running.options.session.parent_lo = now_running.id_lo;
    now_running.options.session.parent_pid = (uint32_t)now_running.process; /* its low half */
    leave_parent();
    now_running.process = rb_rat_process();
    struct opening opening = {.session = NULL};
    open_nogvl(&opening); /* with the GVL: nobody else is in this process */
    enum rat_status status = opening.status;
    if (status == RAT_OK) {
        now_running.session = opening.session;
        status = agent_open(agent);
    }
    if (status != RAT_OK) {
        snprintf(now_running.failure, sizeof now_running.failure, "%s",
                 *opening.why ? opening.why : rat_status_text(status));
        now_running.failed_in_child = true;
        return false;
    }
    rb_rat_ship_in_child();
    return true;
}

/* ---------------------------------------------------------------- the canary */

static void prove(void)
{
    struct rb_rat_agent *agent = rb_rat_main_agent;
    if (!RUNNING || is_forked() || !rb_rat_agent_live(agent))
        return;
    uint64_t generation = agent->generation, from = rat_clock_ns(CLOCK_MONOTONIC);
    uint32_t blind = rb_rat_canary_prove(canary, agent);
    if (!RUNNING || agent->generation != generation)
        return; /* stopped meanwhile */
    now_running.canaries++;
    rb_rat_cost_held(rat_clock_ns(CLOCK_MONOTONIC) - from);
    if (blind == now_running.blind)
        return;
    now_running.blind = blind;
    uint64_t payload = rat_event_pair(RAT_NOTE_BLIND, blind);
    rat_recorder_tell(&agent->hot->recorder, RAT_EVENT_NOTE, &payload, 1,
                      rat_clock_ticks(agent->hot->recorder.clock));
}

static VALUE prove_protected(VALUE unused)
{
    prove();
    return unused;
}

static VALUE prove_in_thread(void *unused)
{
    (void)unused;
    int failed;
    rb_protect(prove_protected, Qnil, &failed); /* killed, or told to raise: whoever did that meant another thread */
    return Qnil;
}

/* What the hooks do not see: nil, or ["call", ...]. */
static VALUE native_prove(VALUE self)
{
    (void)self;
    prove();
    return rb_rat_blind_names(now_running.blind);
}

/* ---------------------------------------------------------------- start */

/* Once for calls, and once more for the first recording with C events. What was refused stays refused. Calls Ruby: not
 * 0 is what interrupted it, to be passed on. */
static int probe_words(void)
{
    int interrupted = 0;
    size_t frame_bytes = 0;
    const char *why = now_running.options.no_words ? "frame_words is off" : NULL;
    if ((now_running.options.events & ~now_running.probed) == 0 || now_running.refused != NULL)
        return 0;
    if (why == NULL)
        frame_bytes = rb_rat_canary_run(canary, (now_running.options.events & RUBY_EVENT_C_CALL) != 0,
                                        now_running.options.scoped, &why, &interrupted);
    if (interrupted == 0) {
        now_running.frame_bytes = frame_bytes;
        now_running.refused = why;
        now_running.probed = now_running.options.events;
    }
    return interrupted;
}

static VALUE native_start(VALUE self, VALUE options)
{
    (void)self;
    struct rb_rat_agent *agent = rb_rat_main_agent;
    require_main("start recording");
    if (is_forked() && !rb_rat_agent_live(agent)) { /* a child that has recorded nothing: the parent's is not ours */
        leave_parent();
        if (agent->hooked)
            rb_rat_hook_remove(agent);
    }
    if (!RUNNING && now_running.process != rb_rat_process())
        forget_threads(); /* also where the parent was stopping, and had no session left to inherit */
    if (RUNNING || now_running.starting == rb_rat_process())
        rb_raise(rb_path2class("Ratrace::Error"), "cannot start recording: it is running; call Ratrace.stop first");
    rb_rat_options_take(&now_running.options, options);
    rb_rat_sites_forget();
    now_running.starting = rb_rat_process(); /* from here on others may run, and start */
    int interrupted = probe_words();
    struct opening opening = {.session = NULL};
    now_running.options.session.frame_path = now_running.frame_bytes != 0 ? 1 : 2;
    if (interrupted == 0)
        without_gvl(open_nogvl, &opening);
    now_running.starting = 0;
    if (interrupted != 0)
        rb_jump_tag(interrupted);
    if (opening.status != RAT_OK)
        rb_rat_status_raise(opening.status, "start recording", opening.why);
    now_running.session = opening.session;
    now_running.start++;
    now_running.process = rb_rat_process();
    now_running.failed_in_child = false;
    now_running.failure[0] = '\0';
    enum rat_status status = agent_open(agent);
    if (status != RAT_OK) {
        (void)rat_session_stop(now_running.session, NULL, 0);
        now_running.session = NULL;
        rb_rat_status_raise(status, "start recording", NULL);
    }
    if (!now_running.options.scoped)
        rb_rat_hook_install(agent);
    now_running.blind = 0;
    now_running.canaries = 0;
    rb_rat_pulse_begin(now_running.options.canary_ns, prove_in_thread);
    return Qtrue;
}

/* ---------------------------------------------------------------- stop and flush */

struct stopping {
    struct rat_session *session;
    enum rat_status status;
    char path[4096];
};

static void *stop_nogvl(void *data)
{
    struct stopping *stopping = data;
    const struct timespec moment = {.tv_nsec = 100000};
    while (atomic_load_explicit(&now_running.users, memory_order_acquire) > 0) /* each leaves within its one try */
        nanosleep(&moment, NULL);
    stopping->status = rat_session_stop(stopping->session, stopping->path, sizeof stopping->path);
    atomic_store_explicit(&ending, 0, memory_order_release);
    return data;
}

static void *wait_for_end(void *data)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    while (atomic_load_explicit(&ending, memory_order_acquire) == rb_rat_process())
        nanosleep(&moment, NULL);
    return data;
}

static void *flush_nogvl(void *data)
{
    struct stopping *stopping = data;
    stopping->status = rat_session_flush(stopping->session);
    atomic_fetch_sub_explicit(&now_running.users, 1, memory_order_release);
    return data;
}

static VALUE native_flush(VALUE self)
{
    (void)self;
    require_main("flush the recording");
    if (!RUNNING || is_forked())
        return Qfalse;
    struct stopping stopping = {.session = now_running.session};
    now_running.users++;
    without_gvl(flush_nogvl, &stopping);
    if (stopping.status != RAT_OK)
        rb_rat_status_raise(stopping.status, "flush the recording", NULL);
    return Qtrue;
}

/* Stop. Returns the path of the last segment, or nil when nothing ran; when another thread is stopping it, after that. */
static VALUE native_stop(VALUE self)
{
    (void)self;
    struct rb_rat_agent *agent = rb_rat_main_agent;
    if (!RUNNING) {
        if (ending == rb_rat_process())
            without_gvl(wait_for_end, (void *)(uintptr_t)&ending);
        return Qnil;
    }
    require_main("stop recording");
    if (agent->hooked)
        rb_rat_hook_remove(agent);
    if (is_forked()) { /* nothing was recorded here */
        leave_parent();
        return Qnil;
    }
    struct rat_recorder *recorder = &agent->hot->recorder;
    struct stopping stopping = {.session = now_running.session};
    uint64_t now = rat_clock_ticks(recorder->clock);
    rat_recorder_bury(recorder, now);
    rb_rat_sites_end();
    rb_rat_governor_end(agent);
    rb_rat_pulse_begin(0, NULL);
    rat_recorder_end_all(recorder, RAT_END_STOP, now);
    agent_close(agent);
    pthread_mutex_lock(&attaching);
    ending = rb_rat_process();
    now_running.session = NULL;
    if (rb_rat_agent_others() > 0) /* attached Ractors store into its memory, and nobody can halt them */
        rat_session_share(stopping.session);
    pthread_mutex_unlock(&attaching);
    without_gvl(stop_nogvl, &stopping);
    if (stopping.status != RAT_OK)
        rb_rat_status_raise(stopping.status, "write the end of the recording",
                            stopping.path[0] != '\0' ? stopping.path : NULL);
    return rb_str_new_cstr(stopping.path);
}

static VALUE native_recording_p(VALUE self)
{
    (void)self;
    return RUNNING && (!is_forked() || !now_running.failed_in_child) ? Qtrue : Qfalse;
}

/* ---------------------------------------------------------------- Ractors */

/* The calling Ractor is recorded no longer. Frames open end here. */
static VALUE native_detach(VALUE self)
{
    (void)self;
    struct rb_rat_agent *agent = rb_rat_agent_current();
    if (agent == NULL || agent == rb_rat_main_agent)
        return Qfalse;
    if (RUNNING)
        rb_rat_hook_retire(agent);
    else
        rb_rat_hook_remove(agent);
    if (rb_rat_agent_live(agent)) { /* after a stop its memory is still there, for nobody to read */
        uint64_t now = rat_clock_ticks(agent->hot->recorder.clock);
        rat_recorder_end_all(&agent->hot->recorder, RAT_END_STOP, now);
    }
    agent_close(agent);
    rb_rat_agent_set_current(NULL);
    rb_rat_agent_give_back(agent);
    return Qtrue;
}

/* Record the calling Ractor, too: a lane of its own. True, or false when nothing is being recorded. */
static VALUE native_attach(VALUE self)
{
    (void)self;
    if (!RUNNING || is_forked())
        return Qfalse;
    struct rb_rat_agent *agent = rb_rat_agent_current();
    if (agent == rb_rat_main_agent || (agent != NULL && agent->start == now_running.start))
        return Qtrue; /* attached before */
    if (agent != NULL)
        (void)native_detach(self); /* from a recording that was stopped */
    agent = rb_rat_agent_take();
    if (agent == NULL)
        rb_raise(rb_path2class("Ratrace::Error"), "cannot attach this Ractor: all %u lanes are in use", RAT_LANES);
    agent_close(agent); /* of a Ractor that ended without detaching */
    pthread_mutex_lock(&attaching);
    enum rat_status status = RUNNING ? agent_open(agent) : RAT_NOT_FOUND;
    pthread_mutex_unlock(&attaching);
    if (status != RAT_OK) {
        rb_rat_agent_give_back(agent);
        rb_rat_status_raise(status, "attach this Ractor", NULL);
    }
    rb_rat_agent_set_current(agent);
    if (!now_running.options.scoped)
        rb_rat_hook_install(agent);
    return Qtrue;
}

/* ---------------------------------------------------------------- looking */

static VALUE drops_hash(const uint64_t *drop)
{
    static const char *const names[RAT_DROP_CAUSES] = {
        [RAT_DROP_SLOT_FULL] = "slot_full",         [RAT_DROP_CONTENDED] = "contended",
        [RAT_DROP_OUT_OF_MEMORY] = "out_of_memory", [RAT_DROP_LANE_DISABLED] = "lane_disabled",
        [RAT_DROP_NO_LANE] = "no_lane",
    };
    VALUE hash = rb_hash_new();
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        if (names[cause] != NULL)
            rb_rat_set(hash, names[cause], ULL2NUM(drop[cause]));
    return hash;
}

static VALUE native_stats(VALUE self)
{
    (void)self;
    require_main("show the recording's counters");
    const struct rb_rat_agent *agent = rb_rat_main_agent;
    const struct rat_recorder *recorder = &agent->hot->recorder;
    VALUE hash = rb_hash_new();
    bool live = RUNNING && !is_forked();
    rb_rat_set(hash, "recording", live ? Qtrue : Qfalse);
    const char *path = now_running.frame_bytes && agent->words ? "words" : "public";
    rb_rat_set(hash, "frame_path", now_running.probed != 0 ? rb_str_new_cstr(path) : Qnil);
    rb_rat_set(hash, "frame_path_refused", now_running.refused != NULL ? rb_str_new_cstr(now_running.refused) : Qnil);
    rb_rat_set(hash, "audits", ULL2NUM(agent->audits));
    rb_rat_set(hash, "audit_failures", ULL2NUM(agent->audit_failures));
    rb_rat_set(hash, "failure", now_running.failure[0] != '\0' ? rb_str_new_cstr(now_running.failure) : Qnil);
    rb_rat_set(hash, "no_context", ULL2NUM(agent->no_context));
    if (!live)
        return hash;
    struct rat_session_stats stats;
    rat_session_stats(now_running.session, &stats);
    uint64_t dropped = 0;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        dropped += stats.drop[cause];
    rb_rat_set(hash, "scoped", now_running.options.scoped ? Qtrue : Qfalse);
    rb_rat_set(hash, "blind", rb_rat_blind_names(now_running.blind));
    rb_rat_set(hash, "canaries", ULL2NUM(now_running.canaries));
    rb_rat_set(hash, "canary_failures", ULL2NUM(rb_rat_pulse_failures()));
    rb_rat_set(hash, "cost", rb_rat_cost_stats());
    if (now_running.options.scoped) {
        rb_rat_set(hash, "governor", rb_rat_governor_stats());
        rb_rat_set(hash, "not_attached", ULL2NUM(rb_rat_sites_elsewhere()));
    }
    rb_rat_set(hash, "events", ULL2NUM(stats.stored));
    rb_rat_set(hash, "dropped", ULL2NUM(dropped));
    rb_rat_set(hash, "drops", drops_hash(stats.drop));
    rb_rat_set(hash, "written_events", ULL2NUM(stats.written_events));
    rb_rat_set(hash, "lost_events", ULL2NUM(stats.lost_events));
    rb_rat_set(hash, "unwound", ULL2NUM(recorder->unwound));
    rb_rat_set(hash, "unmatched", ULL2NUM(recorder->unmatched));
    rb_rat_set(hash, "repaired", ULL2NUM(recorder->repaired));
    rb_rat_set(hash, "switches", ULL2NUM(recorder->switches));
    rb_rat_set(hash, "chunks", ULL2NUM(stats.chunks));
    rb_rat_set(hash, "bytes", ULL2NUM(stats.bytes));
    rb_rat_set(hash, "raw_bytes", ULL2NUM(stats.raw_bytes));
    rb_rat_set(hash, "segments", ULL2NUM(stats.segments));
    rb_rat_set(hash, "flips", ULL2NUM(stats.flips));
    rb_rat_set(hash, "giveups", ULL2NUM(stats.giveups));
    rb_rat_set(hash, "failed_writes", ULL2NUM(stats.failed_writes));
    rb_rat_set(hash, "last_failure",
               stats.last_failure != RAT_OK ? rb_str_new_cstr(rat_status_text(stats.last_failure)) : Qnil);
    rb_rat_set(hash, "encode_ns", ULL2NUM(stats.encode_ns));
    rb_rat_set(hash, "write_ns", ULL2NUM(stats.write_ns));
    rb_rat_set(hash, "frames", ULL2NUM(stats.frames));
    rb_rat_set(hash, "names", ULL2NUM(stats.names));
    rb_rat_set(hash, "contexts", ULL2NUM(stats.contexts));
    rb_rat_set(hash, "folded", ULL2NUM(stats.folded));
    rb_rat_set(hash, "recovered_segments", ULL2NUM(stats.recovered_segments));
    rb_rat_set(hash, "recovered_events", ULL2NUM(stats.recovered_events));
    rb_rat_set(hash, "lanes", UINT2NUM(stats.lanes));
    rb_rat_set(hash, "disabled_lanes", UINT2NUM(stats.disabled_lanes));
    rb_rat_set(hash, "clock", rb_str_new_cstr(rat_clock_name(stats.clock)));
    rb_rat_set(hash, "fence", rb_str_new_cstr(rat_fence_name(stats.fence)));
    rb_rat_set(hash, "live_file", stats.live_file_mapped ? Qtrue : Qfalse);
    rb_rat_set(hash, "live_file_refused", stats.live_file_mapped ? Qnil : rb_str_new_cstr(stats.why_anonymous));
    rb_rat_set(hash, "part", rb_str_new_cstr(stats.part));
    return hash;
}

/* The current context's shadow, bottom first: [[owner, method, kind], …]; nil when nothing is recorded. For tests. */
static VALUE native_shadow(VALUE self)
{
    (void)self;
    struct rb_rat_agent *agent = rb_rat_agent_current();
    if (!RUNNING || is_forked() || agent == NULL || agent->hot->recorder.context == NULL)
        return Qnil;
    const struct rat_recorder *recorder = &agent->hot->recorder;
    static const char *const kinds[] = {
        [RAT_FRAME_INSTANCE] = "method", [RAT_FRAME_C_INSTANCE] = "c", [RAT_FRAME_BASE] = "base"};
    VALUE list = rb_ary_new();
    uint32_t depth = rat_recorder_depth(recorder);
    for (uint32_t i = 1; i <= depth; i++) {
        struct rat_entry entry = recorder->context->entries[i];
        const struct rat_frame_entry *frame = rat_dict_frame_entry(recorder->dict, entry.id);
        if (frame == NULL)
            continue;
        size_t owner_length = 0, method_length = 0;
        const char *owner = rat_dict_name_text(recorder->dict, frame->owner, &owner_length);
        const char *method = rat_dict_name_text(recorder->dict, frame->method, &method_length);
        rb_ary_push(list, rb_ary_new_from_args(3, rb_utf8_str_new(owner, (long)owner_length),
                                               rb_utf8_str_new(method, (long)method_length),
                                               rb_str_new_cstr(kinds[entry.kind])));
    }
    return list;
}

/* ---------------------------------------------------------------- the functions */

/* Ratrace::Canary, once it is loaded. */
static VALUE native_set_canary(VALUE self, VALUE module)
{
    (void)self;
    canary = module;
    return module;
}

void rb_rat_session_init(VALUE native)
{
    canary = Qnil;
    rb_gc_register_address(&canary);
    rb_define_module_function(native, "start", native_start, 1);
    rb_define_module_function(native, "stop", native_stop, 0);
    rb_define_module_function(native, "flush", native_flush, 0);
    rb_define_module_function(native, "recording?", native_recording_p, 0);
    rb_define_module_function(native, "attach", native_attach, 0);
    rb_define_module_function(native, "detach", native_detach, 0);
    rb_define_module_function(native, "stats", native_stats, 0);
    rb_define_module_function(native, "shadow", native_shadow, 0);
    rb_define_module_function(native, "canary=", native_set_canary, 1);
    rb_define_module_function(native, "prove", native_prove, 0);
}
