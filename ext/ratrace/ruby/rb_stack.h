/* rb_stack.h - the VM's own view of the running fiber's stack, to check the shadow against and to take a base from.
 *
 * rb_profile_frames shows more than the shadow has (blocks, rescue and ensure bodies come as their method's entry), so
 * the shadow must be a subsequence of it. None of this allocates Ruby objects but rb_rat_stack_take_base.
 */
#ifndef RB_RAT_STACK_H
#define RB_RAT_STACK_H

#include "ruby/rb_agent.h"

/* Frames on the running fiber's stack, as rb_profile_frames counts them; they are then in agent->frames, top first.
 * -1 = out of memory. */
int rb_rat_stack_count(struct rb_rat_agent *agent);

/* Is the stack at least `depth` frames deep? Counts them: on 3.1 rb_profile_frames ignores where it is to start. */
bool rb_rat_stack_at_least(struct rb_rat_agent *agent, int depth);

/* Take the current context's base: all frames but the top `skip`. */
void rb_rat_stack_take_base(struct rb_rat_agent *agent, int skip, uint64_t now);

/* Nothing of ours lies above the base, and an event came that may be from below its top: drop what is gone. `present`:
 * frames on the stack now that may belong to the base. */
void rb_rat_stack_trim_base(struct rb_rat_agent *agent, int present, uint64_t now);

/* Remove shadow entries above the base that match no real frame; how many. The rat_recorder.verify callback. */
uint32_t rb_rat_stack_verify(struct rat_recorder *recorder, void *agent);

#endif
