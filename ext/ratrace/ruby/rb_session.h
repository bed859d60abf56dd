/* rb_session.h - start, stop, flush and what belongs to them, as module functions of Ratrace::Native.
 *
 * Threads: start and stop in the main Ractor; one session a process. attach in any other Ractor.
 */
#ifndef RB_RAT_SESSION_H
#define RB_RAT_SESSION_H

#include <ruby.h>

#include "ruby/rb_agent.h"

void rb_rat_session_init(VALUE native);

/* An agent whose hot page is empty met an event. In a forked child: leave the parent's session behind and open one of
 * our own. True: the agent can record now. */
bool rb_rat_session_in_child(struct rb_rat_agent *agent);

#endif
