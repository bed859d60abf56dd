#include "model/stack.h"

enum rat_status rat_stack_grow(struct rat_replay_context *context, struct rat_allowance *allowance)
{
    return rat_allowance_grow(allowance, (void **)&context->stack, &context->capacity, context->depth + 1,
                           sizeof *context->stack);
}

void rat_stack_close(struct rat_replay_context *context, const struct rat_visitor *visitor, size_t keep, uint64_t ns,
                     enum rat_left how)
{
    while (context->depth > keep)
        rat_stack_pop(context, visitor, ns, how);
}

/* A frame whose name was lost may be any. */
static bool same_frame(const struct rat_catalog *catalog, uint32_t left, uint32_t right)
{
    return left == right || rat_catalog_is_lost(catalog, left) || rat_catalog_is_lost(catalog, right);
}

enum rat_status rat_stack_sync(struct rat_replay_context *context, struct rat_allowance *allowance,
                               const struct rat_catalog *catalog, const struct rat_visitor *visitor,
                               const struct rat_stack_entry *entries, size_t count, uint64_t ns,
                               struct rat_stack_change *change)
{
    size_t common = 0;
    while (common < count && common < context->depth &&
           same_frame(catalog, context->stack[common].frame, entries[common].frame))
        common++;
    change->closed = context->depth - common;
    change->opened = count - common;
    rat_stack_close(context, visitor, common, context->lossy ? context->loss_ns : ns, RAT_LEFT_READER);
    for (size_t i = common; i < count; i++) {
        struct rat_open_frame frame = {
            .since_ns = ns, .frame = entries[i].frame, .flavor = entries[i].flavor, .before = true};
        enum rat_status status = rat_stack_push(context, allowance, visitor, frame);
        if (status != RAT_OK)
            return status;
    }
    return RAT_OK;
}

void rat_stack_free(struct rat_replay_context *context, struct rat_allowance *allowance)
{
    rat_allowance_free(allowance, context->stack, context->capacity * sizeof *context->stack);
    context->stack = NULL;
    context->depth = context->capacity = 0;
}
