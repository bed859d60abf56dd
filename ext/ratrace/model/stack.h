/* stack.h - the open frames of one context, and their times. Rules: replay.h.
 *
 * Memory:  a context's stack in the allowance given. Threads: one at a time.
 */
#ifndef RAT_MODEL_STACK_H
#define RAT_MODEL_STACK_H

#include "model/replay.h"

/* Room for one more frame. */
RAT_MUST_CHECK enum rat_status rat_stack_grow(struct rat_replay_context *context, struct rat_allowance *allowance);

static inline enum rat_status rat_stack_push(struct rat_replay_context *context, struct rat_allowance *allowance,
                                             const struct rat_visitor *visitor, struct rat_open_frame frame)
{
    if (__builtin_expect(context->depth == context->capacity, 0)) {
        enum rat_status status = rat_stack_grow(context, allowance);
        if (status != RAT_OK)
            return status;
    }
    struct rat_open_frame *top = &context->stack[context->depth];
    *top = frame;
    if (visitor->enter) {
        enum rat_status status = visitor->enter(visitor->user, context, top);
        if (__builtin_expect(status != RAT_OK, 0))
            return status;
    }
    context->depth++;
    return RAT_OK;
}

/* The top frame ends at `ns`, which is not before anything else on this stack. */
static inline void rat_stack_pop(struct rat_replay_context *context, const struct rat_visitor *visitor, uint64_t ns,
                                 enum rat_left how)
{
    const struct rat_open_frame *top = &context->stack[--context->depth];
    uint64_t total = ns - top->since_ns;
    if (context->depth > 0)
        context->stack[context->depth - 1].inner_ns += total;
    if (visitor->leave)
        visitor->leave(visitor->user, context, top, total, total - top->inner_ns, how);
}

/* All frames above the lowest `keep` end. */
void rat_stack_close(struct rat_replay_context *context, const struct rat_visitor *visitor, size_t keep, uint64_t ns,
                     enum rat_left how);

struct rat_stack_entry {
    uint32_t frame;
    enum rat_flavor flavor;
};

struct rat_stack_change {
    size_t closed, opened;
};

/* Make the stack what a snapshot says. Frames that were not there are entered as open since before. */
RAT_MUST_CHECK enum rat_status rat_stack_sync(struct rat_replay_context *context, struct rat_allowance *allowance,
                                              const struct rat_catalog *catalog, const struct rat_visitor *visitor,
                                              const struct rat_stack_entry *entries, size_t count, uint64_t ns,
                                              struct rat_stack_change *change);

void rat_stack_free(struct rat_replay_context *context, struct rat_allowance *allowance);

#endif
