#include "model/profile.h"

#include <stdlib.h>
#include <string.h>

struct rat_profile {
    struct rat_allowance *allowance;
    bool merged;
    uint32_t nodes_max;
    struct rat_profile_node *nodes; /* [0] is unused */
    size_t node_count, node_capacity;
    uint32_t *index; /* node ids by (parent, frame); 0 = empty; at most half full */
    size_t index_size;
    struct rat_profile_thread *threads;
    size_t thread_count, thread_capacity;
    uint64_t folded;
    struct rat_profile_flat *flat;
    size_t flat_capacity;
};

/* ---------------------------------------------------------------- nodes */

static size_t slot_of(const struct rat_profile *profile, uint32_t parent, uint32_t frame)
{
    uint64_t key = ((uint64_t)parent << 32 | frame) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(key >> 32) & (profile->index_size - 1); /* the high half depends on both */
}

static uint32_t find_node(const struct rat_profile *profile, uint32_t parent, uint32_t frame)
{
    size_t at = slot_of(profile, parent, frame);
    for (uint32_t id; (id = profile->index[at]) != 0; at = (at + 1) & (profile->index_size - 1))
        if (profile->nodes[id].parent == parent && profile->nodes[id].frame == frame)
            return id;
    return 0;
}

static void index_node(struct rat_profile *profile, uint32_t id)
{
    size_t at = slot_of(profile, profile->nodes[id].parent, profile->nodes[id].frame);
    while (profile->index[at] != 0)
        at = (at + 1) & (profile->index_size - 1);
    profile->index[at] = id;
}

static enum rat_status reserve_index(struct rat_profile *profile)
{
    if ((profile->node_count + 1) * 2 <= profile->index_size)
        return RAT_OK;
    size_t size = profile->index_size ? profile->index_size * 2 : 1024;
    uint32_t *fresh = rat_allowance_resize(profile->allowance, NULL, 0, size * sizeof *fresh);
    if (!fresh)
        return RAT_NO_MEMORY;
    rat_allowance_free(profile->allowance, profile->index, profile->index_size * sizeof *profile->index);
    profile->index = fresh;
    profile->index_size = size;
    for (uint32_t id = 1; id <= profile->node_count; id++)
        index_node(profile, id);
    return RAT_OK;
}

static enum rat_status add_node(struct rat_profile *profile, uint32_t parent, uint32_t frame, uint32_t *out)
{
    enum rat_status status = reserve_index(profile);
    if (status == RAT_OK)
        status = rat_allowance_grow(profile->allowance, (void **)&profile->nodes, &profile->node_capacity,
                                 profile->node_count + 2, sizeof *profile->nodes);
    if (status != RAT_OK)
        return status;
    uint32_t id = (uint32_t)++profile->node_count;
    struct rat_profile_node *node = &profile->nodes[id];
    *node = (struct rat_profile_node){.parent = parent, .frame = frame};
    if (parent) {
        node->next_sibling = profile->nodes[parent].first_child;
        profile->nodes[parent].first_child = id;
        for (uint32_t up = parent; up && !node->recursive; up = profile->nodes[up].parent)
            node->recursive = profile->nodes[up].frame == frame;
    }
    index_node(profile, id);
    *out = id;
    return RAT_OK;
}

/* The child of `parent` for this frame; past the bound its "(folded)" child, which has no children. */
static enum rat_status child_of(struct rat_profile *profile, uint32_t parent, uint32_t frame, uint32_t *out)
{
    if (profile->nodes[parent].frame == RAT_CATALOG_FOLDED) {
        *out = parent;
        return RAT_OK;
    }
    *out = find_node(profile, parent, frame);
    if (*out == 0 && profile->node_count >= profile->nodes_max) {
        *out = find_node(profile, parent, RAT_CATALOG_FOLDED);
        frame = RAT_CATALOG_FOLDED;
    }
    return *out ? RAT_OK : add_node(profile, parent, frame, out);
}

/* ---------------------------------------------------------------- threads */

static enum rat_status add_thread(struct rat_profile *profile, const struct rat_replay_context *context)
{
    enum rat_status status =
        rat_allowance_grow(profile->allowance, (void **)&profile->threads, &profile->thread_capacity,
                        profile->thread_count + 1, sizeof *profile->threads);
    if (status != RAT_OK)
        return status;
    struct rat_profile_thread *thread = &profile->threads[profile->thread_count];
    *thread = (struct rat_profile_thread){0};
    if (!profile->merged)
        *thread = (struct rat_profile_thread){.session = context->session,
                                              .context = context->id,
                                              .name = context->name,
                                              .os_tid = context->os_tid};
    status = add_node(profile, 0, 0, &thread->root);
    if (status == RAT_OK)
        profile->thread_count++;
    return status;
}

/* A context is met for the first time; its tag becomes its thread's index, from 1. */
static enum rat_status place(struct rat_profile *profile, struct rat_replay_context *context)
{
    struct rat_replay_context *thread = profile->merged ? context : rat_replay_thread(context);
    if (profile->merged && profile->thread_count > 0)
        thread->tag = 1;
    if (thread->tag == 0) {
        enum rat_status status = add_thread(profile, thread);
        if (status != RAT_OK)
            return status;
        thread->tag = (uint32_t)profile->thread_count;
    }
    context->tag = thread->tag;
    profile->threads[context->tag - 1].fibers += context->kind == RAT_CONTEXT_FIBER;
    return RAT_OK;
}

/* ---------------------------------------------------------------- visitor */

static enum rat_status enter(void *user, struct rat_replay_context *context, struct rat_open_frame *frame)
{
    struct rat_profile *profile = user;
    if (__builtin_expect(context->tag == 0, 0)) {
        enum rat_status status = place(profile, context);
        if (status != RAT_OK)
            return status;
    }
    uint32_t parent = context->depth ? context->stack[context->depth - 1].tag : profile->threads[context->tag - 1].root;
    uint32_t id = profile->nodes[parent].last_used;
    if (__builtin_expect(id == 0 || profile->nodes[id].frame != frame->frame, 0)) {
        enum rat_status status = child_of(profile, parent, frame->frame, &id);
        if (status != RAT_OK)
            return status;
        if (id != parent)
            profile->nodes[parent].last_used = id;
    }
    frame->tag = id;
    profile->nodes[id].calls += !frame->before;
    profile->folded += profile->nodes[id].frame == RAT_CATALOG_FOLDED && !frame->before;
    return RAT_OK;
}

static void leave(void *user, struct rat_replay_context *context, const struct rat_open_frame *frame,
                  uint64_t total_ns, uint64_t self_ns, enum rat_left how)
{
    struct rat_profile *profile = user;
    struct rat_profile_node *node = &profile->nodes[frame->tag];
    bool inner = context->depth && context->stack[context->depth - 1].tag == frame->tag; /* within "(folded)" */
    node->total_ns += inner ? 0 : total_ns;
    node->self_ns += self_ns;
    if (total_ns > node->max_ns)
        node->max_ns = total_ns;
    if (__builtin_expect(context->depth == 0, 0))
        profile->threads[context->tag - 1].total_ns += total_ns;
    if (__builtin_expect(how == RAT_LEFT_OPEN, 0))
        profile->threads[context->tag - 1].open++;
}

enum rat_status rat_profile_new(uint32_t nodes_max, bool merged, struct rat_profile **out, struct rat_visitor *visitor)
{
    struct rat_profile *profile = calloc(1, sizeof *profile);
    if (!profile)
        return RAT_NO_MEMORY;
    profile->nodes_max = nodes_max ? nodes_max : RAT_PROFILE_NODES_DEFAULT;
    profile->merged = merged;
    *visitor = (struct rat_visitor){.user = profile, .enter = enter, .leave = leave};
    *out = profile;
    return RAT_OK;
}

void rat_profile_bind(struct rat_profile *profile, struct rat_allowance *allowance)
{
    profile->allowance = allowance;
}

void rat_profile_free(struct rat_profile *profile)
{
    if (!profile)
        return;
    struct rat_allowance *allowance = profile->allowance;
    if (allowance) {
        rat_allowance_free(allowance, profile->nodes, profile->node_capacity * sizeof *profile->nodes);
        rat_allowance_free(allowance, profile->index, profile->index_size * sizeof *profile->index);
        rat_allowance_free(allowance, profile->threads, profile->thread_capacity * sizeof *profile->threads);
        rat_allowance_free(allowance, profile->flat, profile->flat_capacity * sizeof *profile->flat);
    }
    free(profile);
}

void rat_profile_reset(struct rat_profile *profile)
{
    profile->node_count = profile->thread_count = 0;
    profile->folded = 0;
    if (profile->index_size > 0)
        memset(profile->index, 0, profile->index_size * sizeof *profile->index);
}

/* ---------------------------------------------------------------- results */

size_t rat_profile_thread_count(const struct rat_profile *profile)
{
    return profile->thread_count;
}

const struct rat_profile_thread *rat_profile_thread(const struct rat_profile *profile, size_t index)
{
    return &profile->threads[index];
}

size_t rat_profile_node_count(const struct rat_profile *profile)
{
    return profile->node_count;
}

const struct rat_profile_node *rat_profile_node(const struct rat_profile *profile, uint32_t id)
{
    return &profile->nodes[id];
}

uint64_t rat_profile_folded(const struct rat_profile *profile)
{
    return profile->folded;
}

static void add_up(struct rat_profile *profile, const struct rat_profile_node *node)
{
    struct rat_profile_flat *row = &profile->flat[node->frame];
    row->frame = node->frame;
    row->calls += node->calls;
    row->total_ns += node->recursive ? 0 : node->total_ns;
    row->self_ns += node->self_ns;
    if (node->max_ns > row->max_ns)
        row->max_ns = node->max_ns;
}

/* The node after `id` in the tree below `root`, parents first; 0 at the end. */
static uint32_t after(const struct rat_profile *profile, uint32_t root, uint32_t id)
{
    if (profile->nodes[id].first_child)
        return profile->nodes[id].first_child;
    while (id != root && !profile->nodes[id].next_sibling)
        id = profile->nodes[id].parent;
    return id == root ? 0 : profile->nodes[id].next_sibling;
}

enum rat_status rat_profile_flatten(struct rat_profile *profile, uint32_t frames, size_t thread,
                                    const struct rat_profile_flat **rows, size_t *count)
{
    enum rat_status status = rat_allowance_grow(profile->allowance, (void **)&profile->flat, &profile->flat_capacity,
                                             (size_t)frames + 1, sizeof *profile->flat);
    if (status != RAT_OK)
        return status;
    memset(profile->flat, 0, profile->flat_capacity * sizeof *profile->flat);
    if (thread == SIZE_MAX) {
        for (size_t id = 1; id <= profile->node_count; id++)
            add_up(profile, &profile->nodes[id]);
    } else if (thread < profile->thread_count) {
        uint32_t root = profile->threads[thread].root;
        for (uint32_t id = root; id; id = after(profile, root, id))
            add_up(profile, &profile->nodes[id]);
    }
    *rows = profile->flat;
    *count = 0;
    for (uint32_t frame = 1; frame <= frames; frame++)
        if (profile->flat[frame].frame)
            profile->flat[(*count)++] = profile->flat[frame];
    return RAT_OK;
}
