/* rb_governor.h - keeps ratrace's own cost below a limit, by the gates of rb_site.h.
 *
 * Own cost is what rb_cost.h measures: hooks and serializer, as a part of the process's CPU time. What the VM takes to
 * call even an empty hook (30 to 40 ns an event, closed gate or not) is not in it, and nothing here can lower it: a
 * method called millions of times a second does not belong into the scope.
 *
 *   Beat     four times a second, at the next event of a traced method (the serializer thread says when).
 *   Window   beats until the process has used WINDOW_CPU_NS, at most WINDOW_NS long.
 *   Close    above the limit: from here on calls are counted a site; still above it a window later, the busiest are closed
 *            until what is left would take CLOSE_TO of the limit.
 *   Open     a closed site is looked at after its back-off, 1 s at first. It opens if what it would cost now fits
 *            below OPEN_TO of the limit, else it waits again. Closed again soon after, its back-off doubles, up to 64 s.
 *
 * Every change is a gate event in the stream; once a second those of closed sites tell what they left out, and at stop
 * all do. Without frame words (rb_hook.c) a site closes when none of its frames is open, and none once there was a second
 * Ractor, whose frames nobody counts.
 *
 * Threads: the main Ractor's, under the GVL, in a callback after its event.
 */
#ifndef RB_RAT_GOVERNOR_H
#define RB_RAT_GOVERNOR_H

#include <ruby.h>

#include "ruby/rb_agent.h"

struct rb_rat_site;

/* `limit`: own CPU time as a part of the process's, 0 to 1. */
void rb_rat_governor_begin(double limit);

void rb_rat_governor_beat(struct rb_rat_agent *agent);

/* A site with `closing` set has no open frame. */
void rb_rat_governor_close(struct rb_rat_agent *agent, struct rb_rat_site *site);

/* The recording ends: tell the stream the last counts and the cost. */
void rb_rat_governor_end(struct rb_rat_agent *agent);

/* For Ratrace.stats. */
VALUE rb_rat_governor_stats(void);

#endif
