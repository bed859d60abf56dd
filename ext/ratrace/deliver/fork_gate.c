#include "deliver/fork_gate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "base/clock.h"
#include "base/testpoint.h"

uint64_t rat_fork_gate_ns = UINT64_C(50000000);
uint64_t rat_fork_gate_lookup_ns = UINT64_C(50000000);

/* Each side announces itself, then looks for the other; seq_cst, so that not both see nobody. */
static _Atomic uint32_t inside, forking;
static _Atomic uint64_t lookup_until; /* CLOCK_MONOTONIC ns; written inside the gate, so a fork that waited sees it */
static __thread uint32_t depth;

static void pause_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static bool is_young(uint64_t now)
{
    uint64_t lookup = atomic_load_explicit(&lookup_until, memory_order_seq_cst);
    return lookup != 0 && now < lookup;
}

static bool try_to_enter(bool looks_up)
{
    if (depth > 0) {
        depth++;
        return true;
    }
    atomic_fetch_add_explicit(&inside, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&forking, memory_order_seq_cst) == 0 ||
        (looks_up && is_young(rat_clock_ns(CLOCK_MONOTONIC)))) {
        depth = 1;
        return true;
    }
    atomic_fetch_sub_explicit(&inside, 1, memory_order_seq_cst);
    pause_a_moment();
    return false;
}

bool rat_fork_gate_try_for_lookup(void)
{
    return try_to_enter(true);
}

void rat_fork_gate_enter(void)
{
    while (!try_to_enter(false))
        ;
}

void rat_fork_gate_leave(void)
{
    if (--depth == 0)
        atomic_fetch_sub_explicit(&inside, 1, memory_order_seq_cst);
}

void rat_fork_gate_pass(void)
{
    uint32_t before = depth;
    if (before == 0 || atomic_load_explicit(&forking, memory_order_relaxed) == 0) /* a hint; enter looks again */
        return;
    depth = 1;
    rat_fork_gate_leave();
    rat_fork_gate_enter();
    depth = before;
}

void rat_fork_gate_lookup_begin(void)
{
    atomic_store_explicit(&lookup_until, rat_clock_ns(CLOCK_MONOTONIC) + rat_fork_gate_lookup_ns, memory_order_seq_cst);
}

void rat_fork_gate_lookup_end(void)
{
    atomic_store_explicit(&lookup_until, 0, memory_order_seq_cst);
}

/* `until` bounds the wait for who is inside, its age that for a look-up. Nobody enters any more but the look-up's owner,
 * so once nobody is inside no look-up begins either. The owner enters only while a fork waits for its look-up: it asks the
 * clock after it announced itself, and here the clock is asked before its announcement is looked for. */
static bool must_wait(uint64_t until)
{
    uint64_t now = rat_clock_ns(CLOCK_MONOTONIC);
    return (atomic_load_explicit(&inside, memory_order_seq_cst) != 0 && now < until) || is_young(now);
}

static void before_fork(void)
{
    atomic_fetch_add_explicit(&forking, 1, memory_order_seq_cst);
    uint64_t until = rat_clock_ns(CLOCK_MONOTONIC) + rat_fork_gate_ns;
    if (!must_wait(until))
        return;
    RAT_TEST_POINT("fork.waiting");
    while (must_wait(until))
        pause_a_moment();
}

static void in_parent(void)
{
    atomic_fetch_sub_explicit(&forking, 1, memory_order_seq_cst);
}

static void in_child(void)
{
    atomic_store_explicit(&forking, 0, memory_order_relaxed); /* nobody else is here */
    atomic_store_explicit(&inside, 0, memory_order_relaxed);
    atomic_store_explicit(&lookup_until, 0, memory_order_relaxed);
    depth = 0;
}

void rat_fork_gate_install(void)
{
    static bool installed;
    if (!installed)
        installed = pthread_atfork(before_fork, in_parent, in_child) == 0;
}
