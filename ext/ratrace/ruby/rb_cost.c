#include "ruby/rb_cost.h"

#include <string.h>
#include <time.h>

#include "ruby/rb_hash.h"

#define OUTLIER_NS 2000.0 /* longer, and the thread was not running, or a GC was */
#define SMOOTH 4.0
#define SERIALIZER_EVENT_NS 10.0 /* until it is known */

struct rb_rat_cost rb_rat_cost;
struct rat_beat rb_rat_beat;

static struct {
    double ns_per_tick;
    uint64_t outlier_ticks;
    uint64_t clock_ticks;       /* what two looks at the clock are apart by themselves */
    uint64_t sum, count;        /* samples since the last update */
    uint64_t events, process_ns, serializer_ns; /* at the last update */
    uint64_t first_events, first_process_ns;    /* at the beginning */
} last;

static uint64_t process_ns(void)
{
    return rat_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static uint64_t serializer_ns(void)
{
    return atomic_load_explicit(&rb_rat_beat.cpu_ns, memory_order_relaxed);
}

static uint64_t lane_events(const struct rb_rat_agent *agent)
{
    const struct rat_lane_producer *lane = &agent->hot->recorder.lane;
    uint64_t events = lane->lane != NULL ? rat_lane_stored(lane) : last.events;
    for (int cause = 0; lane->lane != NULL && cause < RAT_DROP_CAUSES; cause++)
        events += atomic_load_explicit(&lane->lane->drop[cause], memory_order_relaxed);
    return events;
}

void rb_rat_cost_begin(struct rb_rat_agent *agent, uint64_t ticks_per_s, double gate_ns)
{
    enum rat_clock_kind clock = agent->hot->recorder.clock;
    memset(&last, 0, sizeof last);
    rb_rat_cost = (struct rb_rat_cost){.gate_ns = gate_ns, .event_ns = SERIALIZER_EVENT_NS};
    last.ns_per_tick = 1e9 / (double)ticks_per_s;
    last.outlier_ticks = (uint64_t)(OUTLIER_NS / last.ns_per_tick);
    last.clock_ticks = UINT64_MAX;
    for (int i = 0; i < 64; i++) {
        uint64_t from = rat_clock_ticks(clock), took = rat_clock_ticks(clock) - from;
        if (took < last.clock_ticks)
            last.clock_ticks = took;
    }
    last.process_ns = last.first_process_ns = process_ns();
    last.serializer_ns = 0;
    last.events = last.first_events = lane_events(agent);
}

void rb_rat_cost_sample(uint64_t ticks)
{
    if (ticks > last.outlier_ticks)
        return;
    last.sum += ticks > last.clock_ticks ? ticks - last.clock_ticks : 0;
    last.count++;
}

void rb_rat_cost_held(uint64_t ns)
{
    rb_rat_cost.gvl_ns += (double)ns;
}

void rb_rat_cost_update(struct rb_rat_agent *agent, uint64_t gated, uint64_t *process, double *own, uint64_t *events)
{
    struct rb_rat_cost *cost = &rb_rat_cost;
    uint64_t now_events = lane_events(agent), now_process = process_ns(), now_serializer = serializer_ns();
    *events = now_events - last.events;
    *process = now_process - last.process_ns;
    if (last.count > 0) {
        double mean = (double)last.sum / (double)last.count * last.ns_per_tick;
        cost->hook_ns += cost->hook_ns == 0 ? mean : (mean - cost->hook_ns) / SMOOTH;
        last.sum = last.count = 0;
    }
    double hooks = (double)*events * cost->hook_ns + (double)gated * cost->gate_ns;
    cost->hooks_ns += hooks;
    cost->gvl_ns += hooks;
    cost->serializer_ns = now_serializer;
    cost->process_ns = now_process - last.first_process_ns;
    cost->events = now_events - last.first_events;
    /* the serializer works in bursts, once a period: what an event costs there is known over the whole recording only */
    double serializer_event = cost->events > 100000 ? (double)now_serializer / (double)cost->events : SERIALIZER_EVENT_NS;
    cost->event_ns = cost->hook_ns + serializer_event;
    *own = (double)*events * cost->event_ns + (double)gated * cost->gate_ns;
    last.events = now_events;
    last.process_ns = now_process;
    last.serializer_ns = now_serializer;
}

void rb_rat_cost_tell(struct rb_rat_agent *agent, uint64_t now)
{
    const struct rb_rat_cost *cost = &rb_rat_cost;
    uint64_t payload[RAT_COST_WORDS] = {(uint64_t)cost->hooks_ns, cost->serializer_ns, cost->process_ns,
                                        (uint64_t)cost->gvl_ns, cost->events};
    rat_recorder_tell(&agent->hot->recorder, RAT_EVENT_COST, payload, RAT_COST_WORDS, now);
}

VALUE rb_rat_cost_stats(void)
{
    const struct rb_rat_cost *cost = &rb_rat_cost;
    double own = cost->hooks_ns + (double)cost->serializer_ns;
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "share", DBL2NUM(cost->process_ns > 0 ? own / (double)cost->process_ns : 0.0));
    rb_rat_set(hash, "recent_share", DBL2NUM(cost->share));
    rb_rat_set(hash, "hook_ns", DBL2NUM(cost->hook_ns));
    rb_rat_set(hash, "gate_ns", DBL2NUM(cost->gate_ns));
    rb_rat_set(hash, "hooks_ns", ULL2NUM((unsigned long long)cost->hooks_ns));
    rb_rat_set(hash, "serializer_ns", ULL2NUM(cost->serializer_ns));
    rb_rat_set(hash, "process_ns", ULL2NUM(cost->process_ns));
    rb_rat_set(hash, "gvl_ns", ULL2NUM((unsigned long long)cost->gvl_ns));
    return hash;
}
