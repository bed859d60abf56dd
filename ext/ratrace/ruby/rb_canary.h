/* rb_canary.h - proof, on this very Ruby, that a raw hook's trace argument has the words rb_hook.c reads.
 *
 * A fixed nest of tiny methods, a block, a C call and a define_method body runs under a hook that writes down the words
 * and what the public calls say of the same events. Memory is read through a pipe, which refuses a bad address instead
 * of crashing, so a wrong guess about the layout costs nothing.
 *
 * C events are proved only for a recording that wants them: on Ruby 3.1 a process that has hooked them once runs `+`,
 * `<` and their like in traced form for good, hook or no hook.
 */
#ifndef RB_RAT_CANARY_H
#define RB_RAT_CANARY_H

#include <ruby.h>
#include <stdbool.h>

#include "ruby/rb_agent.h"

/* Run the nest (a callable, Ratrace::Canary.run) under the hook, hooking C events as well if `c_events`. `scoped`: under
 * TracePoints of its methods, without a hook of the whole process. Returns the size of a control frame in bytes, or 0
 * with *why set to what did not hold. *interrupted, 0 at first, is for rb_jump_tag where the nest came to no end: nothing
 * was proved then. Under the GVL, which others may have meanwhile; one at a time. */
size_t rb_rat_canary_run(VALUE nest, bool c_events, bool scoped, const char **why, int *interrupted);

/* While a recording runs: are the nest's calls seen? A sum of enum rat_blind; 0 = all is seen. Runs Ruby code, which
 * may be interrupted: that raises. */
uint32_t rb_rat_canary_prove(VALUE nest, struct rb_rat_agent *agent);

/* ["call", ...], or nil for 0. */
VALUE rb_rat_blind_names(uint32_t blind);

#endif
