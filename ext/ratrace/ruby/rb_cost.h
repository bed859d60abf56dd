/* rb_cost.h - what ratrace itself costs the process, measured while it runs.
 *
 *   hooks       one hook in RB_RAT_COST_SAMPLE (of calls in a whole recording: one in 4,096) is timed by the clock's own
 *               ticks from its first line to its last; the mean times the number of events. Those that took longer than
 *               2 us are left out: the thread lost its CPU, or a GC ran. What the VM takes to call a hook, even an empty
 *               one, is not in it
 *   serializer  CPU time of our thread, by the kernel
 *   process     CPU time of all threads, by the kernel
 *   gvl         hooks, and what else of ours runs with the GVL: governor, canary, starting, finding methods
 *
 * Threads: the main Ractor's, under the GVL.
 */
#ifndef RB_RAT_COST_H
#define RB_RAT_COST_H

#include <ruby.h>
#include <stdint.h>

#include "deliver/session.h"
#include "ruby/rb_agent.h"

#define RB_RAT_COST_SAMPLE 257u /* odd, so that calls and returns are met alike */

struct rb_rat_cost {
    double hooks_ns, gvl_ns;                        /* since the recording began */
    uint64_t serializer_ns, process_ns, events;
    double hook_ns;       /* of one hook, recently */
    double event_ns;      /* hook and serializer, of one event */
    double gate_ns;       /* of a call and a return that are only counted */
    double share;         /* of the process's CPU time, in the last window */
};
extern struct rb_rat_cost rb_rat_cost;
extern struct rat_beat rb_rat_beat;

void rb_rat_cost_begin(struct rb_rat_agent *agent, uint64_t ticks_per_s, double gate_ns);

/* One hook took this long. */
void rb_rat_cost_sample(uint64_t ticks);

/* Something of ours held the GVL for this long, outside of hooks. */
void rb_rat_cost_held(uint64_t ns);

/* Take in what happened since the last time: CPU time of the process in *process_ns, of ratrace in *own_ns, events in
 * *events. `gated`: calls that were only counted. */
void rb_rat_cost_update(struct rb_rat_agent *agent, uint64_t gated, uint64_t *process_ns, double *own_ns,
                        uint64_t *events);

/* Tell the stream. */
void rb_rat_cost_tell(struct rb_rat_agent *agent, uint64_t now);

/* For Ratrace.stats. */
VALUE rb_rat_cost_stats(void);

#endif
