/* rb_context.h - from the fiber that runs to its context, which hangs on the fiber itself.
 *
 * A fiber's address is reused after a GC, so it is no key; a hidden instance variable is: it dies with the fiber, and
 * its end is how we learn of an abandoned fiber's. Frozen fibers take no variable and are kept in a list instead.
 */
#ifndef RB_RAT_CONTEXT_H
#define RB_RAT_CONTEXT_H

#include "ruby/rb_agent.h"

/* Make the running fiber's context current. Allocates (once a fiber), so before a slot is entered. False: events of it
 * cannot be recorded now; they are counted. `fresh`: if it has no context yet, its stack is known to be empty. */
bool rb_rat_context_enter(struct rb_rat_agent *agent, uintptr_t ec, bool fresh, uint64_t now);

/* The running fiber has started, and nothing is on its stack yet: give it a context without a base. */
void rb_rat_context_begin(struct rb_rat_agent *agent);

void rb_rat_context_init(void);

#endif
