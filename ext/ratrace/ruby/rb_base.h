/* rb_base.h - events with nothing above the base: of frames that were on a stack before it was recorded.
 *
 * They take the base if it is due, and shorten it to what is still on the stack.
 */
#ifndef RB_RAT_BASE_H
#define RB_RAT_BASE_H

#include "ruby/rb_agent.h"

/* A call. `own`: frames on top of the stack that belong to it. `word`: of its frame; 0 = public path. */
void rb_rat_base_call(struct rb_rat_agent *agent, int own, uintptr_t word, uint64_t now);

/* A return that matches nothing above the base: a base frame's end, or nobody's. `word` as above. */
void rb_rat_base_return(struct rb_rat_agent *agent, bool is_c, rb_trace_arg_t *arg, uintptr_t word, uint64_t now);

#endif
