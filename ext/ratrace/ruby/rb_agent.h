/* rb_agent.h - what records one Ractor: its recorder, its names, and its place in the VM.
 *
 * Memory of one agent, in one mapping:
 *
 *   page 0     struct rb_rat_hot: what every event touches. MADV_WIPEONFORK: a forked child finds zeros
 *   page 1     pointer back to the agent, which the wipe leaves alone
 *   page 2..   the name cache: method entry → frame id
 *
 * so that the hook reaches all of it from the one pointer the VM hands it. That pointer is passed as a Fixnum (its low
 * bit set), because the VM marks a hook's data.
 *
 * Agents are never freed: a hook may hold the pointer. A Ractor's agent is used again by a later Ractor.
 */
#ifndef RB_RAT_AGENT_H
#define RB_RAT_AGENT_H

#include <ruby.h>
#include <ruby/debug.h>

#include "record/recorder.h"

#define RB_RAT_PAGE 4096
#define RB_RAT_CACHE 8192 /* entries; a power of two */
#define RB_RAT_C_CACHE 512

struct rb_rat_hot {
    struct rat_recorder recorder; /* first: the hook's pointer is this */
    uintptr_t frame_bytes;        /* size of a control frame, from the canary; 0 = public path */
};

/* id > 0: told. RB_RAT_ID_HIDDEN (negative): on the shadow only. 0: empty. */
struct rb_rat_cached {
    uintptr_t key; /* method entry; with the public path, value of rb_profile_frames */
    int32_t id;
    uint32_t reserved;
};
struct rb_rat_c_cached {
    uintptr_t owner; /* of a C function, as the trace argument has it */
    uintptr_t called;
    int32_t id;
    uint32_t reserved;
};
#define RB_RAT_ID_HIDDEN (-1)

struct rb_rat_names; /* rb_name.h */

struct rb_rat_agent {
    struct rb_rat_hot *hot;
    struct rb_rat_cached *cache;
    struct rb_rat_c_cached *c_cache;
    struct rb_rat_names *names;
    uint64_t start;           /* session it was opened for */
    uint64_t generation;      /* counts openings: contexts of an earlier one are not ours */
    bool words;               /* frame words proved by the canary and still trusted */
    bool hooked;
    bool calling;             /* the event in hand is a call: all of the shadow is on the stack */
    bool main;
    bool timed;               /* the last audit was preceded by a timed call */
    uint32_t lane;            /* RAT_LANE_MAIN or RAT_LANE_RACTOR */
    rb_event_flag_t events;   /* CALL and RETURN, with --c-calls the C ones, too */
    VALUE *frames;            /* scratch for rb_profile_frames */
    int frames_capacity;
    VALUE odd;                /* Array of [frozen fiber or thread, state, fiber it was met in]: they take no ivar */
    uint64_t audits, audit_failures, unmapped;
    uint64_t hidden_calls, hidden_returns, hidden_c_calls, hidden_c_returns; /* seen and not told: the canary's, too */
    uintptr_t stack_from, stack_bytes; /* public path: of the context's machine stack, where it was met; 0 bytes: nowhere */
    uint64_t no_context;      /* events that found no context: no memory, no session */
};

#define RB_RAT_HOT_OF(data) ((struct rb_rat_hot *)((uintptr_t)(data) & ~(uintptr_t)1))
#define RB_RAT_DATA_OF(hot) ((VALUE)((uintptr_t)(hot) | 1))

static inline struct rb_rat_agent *rb_rat_agent_of(const struct rb_rat_hot *hot)
{
    return *(struct rb_rat_agent **)((uintptr_t)hot + RB_RAT_PAGE);
}

static inline __attribute__((always_inline)) struct rb_rat_cached *rb_rat_cache_slot(struct rb_rat_hot *hot,
                                                                                     uintptr_t key)
{
    struct rb_rat_cached *cache = (void *)((uintptr_t)hot + 2 * RB_RAT_PAGE);
    return &cache[(key * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - 13)];
}

static inline __attribute__((always_inline)) struct rb_rat_c_cached *rb_rat_c_cache_slot(struct rb_rat_hot *hot,
                                                                                         uintptr_t owner,
                                                                                         uintptr_t called)
{
    struct rb_rat_c_cached *cache =
        (void *)((uintptr_t)hot + 2 * RB_RAT_PAGE + RB_RAT_CACHE * sizeof(struct rb_rat_cached));
    return &cache[((owner ^ called << 7) * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - 9)];
}

/* The main Ractor's agent; made by rb_rat_agent_init. */
extern struct rb_rat_agent *rb_rat_main_agent;

/* Once, from Init. */
void rb_rat_agent_init(void);

/* An agent for another Ractor (reused or new). NULL = out of memory. Thread-safe. */
struct rb_rat_agent *rb_rat_agent_take(void);
void rb_rat_agent_give_back(struct rb_rat_agent *agent);

/* Agents in use beside the main one. A Ractor that ended without giving its agent back counts until it is collected. */
int rb_rat_agent_others(void);

/* Forget cached ids and the current context: after a GC, in a child, at start and stop. */
void rb_rat_agent_forget(struct rb_rat_agent *agent);

/* Called in each GC, where nothing may allocate; NULL = nothing is. */
extern void (*rb_rat_agent_on_gc)(void);

/* This Ractor's agent, or NULL. */
struct rb_rat_agent *rb_rat_agent_current(void);
void rb_rat_agent_set_current(struct rb_rat_agent *agent);

/* Which process this is: its pid below, how many forks away from the first above, because a child that is the first of
 * its pid namespace may have the pid of its parent. */
uint64_t rb_rat_process(void);

/* In a forked child the hot page is wiped. */
static inline bool rb_rat_agent_live(const struct rb_rat_agent *agent)
{
    return agent->hot->recorder.lane_number != 0;
}

#endif
