/* profile.h - calls added up: a calling-context tree for each thread.
 *
 * A node is a path of frames from the thread's root; recursion makes deeper nodes, so in the tree nothing is counted
 * twice: a node's total is its self and its children's totals. Fibers count under their thread. The flat table adds
 * nodes up by frame, totals from outermost activations only.
 *
 * Bound. Past `nodes_max` a call path that is new goes to its parent's "(folded)" node, with everything it calls;
 * `folded` says how many calls. All sums stay true.
 *
 * Memory:  in the replay's allowance; about 56 bytes a node and 16 of index.
 * Threads: one at a time.
 */
#ifndef RAT_MODEL_PROFILE_H
#define RAT_MODEL_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/replay.h"

#define RAT_PROFILE_NODES_DEFAULT 1000000u

struct rat_profile_node {
    uint32_t parent; /* 0 = none: a thread's root */
    uint32_t frame;  /* of the catalog; 0 = root */
    uint32_t first_child, next_sibling;
    uint32_t last_used; /* the child entered last */
    bool recursive;     /* its frame is among its ancestors */
    uint64_t calls;     /* activations seen to begin */
    uint64_t total_ns, self_ns, max_ns;
};

struct rat_profile_thread {
    const struct rat_replay_session *session; /* NULL in a merged profile */
    uint32_t context, name; /* name of the catalog */
    uint64_t os_tid;
    uint32_t root;
    uint32_t fibers; /* contexts counted under it, beside itself */
    uint64_t open;   /* frames still open when the data ended */
    uint64_t total_ns; /* sum of its root frames */
};

struct rat_profile_flat {
    uint32_t frame;
    uint64_t calls, total_ns, self_ns, max_ns;
};

struct rat_profile;

/* A profile of a replay still to be run: give `visitor` to rat_replay_new, then bind. nodes_max 0 = default. `merged`:
 * one tree for all threads. */
RAT_MUST_CHECK enum rat_status rat_profile_new(uint32_t nodes_max, bool merged, struct rat_profile **out,
                                               struct rat_visitor *visitor);
void rat_profile_bind(struct rat_profile *profile, struct rat_allowance *allowance);
/* Before the replay it is bound to. */
void rat_profile_free(struct rat_profile *profile);

/* Forget all calls: for the next interval of rat_replay_pause and rat_replay_resume, between the two. */
void rat_profile_reset(struct rat_profile *profile);

size_t rat_profile_thread_count(const struct rat_profile *profile);
const struct rat_profile_thread *rat_profile_thread(const struct rat_profile *profile, size_t index);
/* Nodes have ids from 1 to the count. */
size_t rat_profile_node_count(const struct rat_profile *profile);
const struct rat_profile_node *rat_profile_node(const struct rat_profile *profile, uint32_t id);
uint64_t rat_profile_folded(const struct rat_profile *profile);

/* The flat table of one thread (or, with SIZE_MAX, of all), a row a frame that was met, in order of frame ids. The
 * table is valid until the next call. */
RAT_MUST_CHECK enum rat_status rat_profile_flatten(struct rat_profile *profile, uint32_t frames, size_t thread,
                                                   const struct rat_profile_flat **rows, size_t *count);

#endif
