/* rb_hook.h - the VM's events: where recording begins.
 *
 * Threads: install and remove under the GVL, in the agent's Ractor. The hooks run there, too.
 */
#ifndef RB_RAT_HOOK_H
#define RB_RAT_HOOK_H

#include "ruby/rb_agent.h"

/* What records one event; `data` is RB_RAT_DATA_OF of the agent's hot page. Fits an agent with frame words or without. */
typedef void rb_rat_hook(VALUE data, const rb_trace_arg_t *arg);
rb_rat_hook *rb_rat_hook_function(const struct rb_rat_agent *agent);

/* Once, from Init, after rb_rat_agent_init. */
void rb_rat_hook_init(void);

/* Hook agent->events, with the fence-free or the seq_cst lane as the recorder says. */
void rb_rat_hook_install(struct rb_rat_agent *agent);
void rb_rat_hook_remove(struct rb_rat_agent *agent);

/* Remove it from a Ractor, while others are recorded: an empty hook stays there. */
void rb_rat_hook_retire(struct rb_rat_agent *agent);

#endif
