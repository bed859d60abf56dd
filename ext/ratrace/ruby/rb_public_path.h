/* rb_public_path.h - one event by the VM's public calls alone, for a Ruby whose frame words (rb_hook.c) are not to be
 * believed: contexts by rb_fiber_current, methods by the trace argument's accessors, frames by what rb_profile_frames
 * calls them, and stale frames by counting. Slower, and the same stream.
 */
#ifndef RB_RAT_PUBLIC_PATH_H
#define RB_RAT_PUBLIC_PATH_H

#include "ruby/rb_agent.h"

/* CALL, RETURN, C_CALL or C_RETURN. Call it in the hook. */
void rb_rat_public_event(struct rb_rat_agent *agent, rb_trace_arg_t *arg, rb_event_flag_t event, uint64_t now);

/* The word of the method frame that runs; 0 = none. */
uintptr_t rb_rat_public_frame(void);

#endif
