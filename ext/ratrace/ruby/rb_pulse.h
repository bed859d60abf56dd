/* rb_pulse.h - runs the canary from time to time, in a process that has no Ruby thread of ours.
 *
 * Who looks at the clock: every GC (its mark function is called whatever became of our hooks) and the governor's beat.
 * A process that does neither calls no method, so there is nothing to be blind to. When it is time, a postponed job
 * starts a Ruby thread that makes the canary calls and ends, within a millisecond. A thread of its own, because a
 * Timeout or Thread#raise that is due would be raised by the canary's calls, and a postponed job swallows it; and
 * because within another tool's TracePoint nobody's hooks see anything.
 *
 * Threads: the main Ractor's, under the GVL; rb_rat_pulse_look also in a GC.
 */
#ifndef RB_RAT_PULSE_H
#define RB_RAT_PULSE_H

#include <ruby.h>
#include <stdint.h>

/* Run `prove` in a thread every `period_ns` from now on; 0 = never. */
void rb_rat_pulse_begin(uint64_t period_ns, VALUE (*prove)(void *));

/* Is it time? Does not allocate. */
void rb_rat_pulse_look(void);

/* Canaries that could not be started, for Ratrace.stats. */
uint64_t rb_rat_pulse_failures(void);

void rb_rat_pulse_init(void);

#endif
