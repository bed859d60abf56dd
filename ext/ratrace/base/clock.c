#include "base/clock.h"

#include <stddef.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define SANDWICH_TRIES 8
#define PROBE_NS 1000000u

const char *rat_clock_name(enum rat_clock_kind kind)
{
    switch (kind) {
    case RAT_CLOCK_TSC:
        return "tsc";
    case RAT_CLOCK_CNTVCT:
        return "cntvct";
    case RAT_CLOCK_MONOTONIC:
        return "monotonic";
    }
    return "unknown";
}

uint64_t rat_clock_monotonic(void)
{
    return rat_clock_ns(CLOCK_MONOTONIC);
}

struct rat_anchor rat_anchor_take(enum rat_clock_kind kind)
{
    struct rat_anchor best = {.width_ticks = UINT32_MAX};
    for (int i = 0; i < SANDWICH_TRIES; i++) {
        uint64_t before = rat_clock_ticks(kind);
        uint64_t monotonic = rat_clock_ns(CLOCK_MONOTONIC);
        uint64_t realtime = rat_clock_ns(CLOCK_REALTIME);
        uint64_t after = rat_clock_ticks(kind);
        uint64_t width = after >= before ? after - before : UINT32_MAX;
        if (i > 0 && width >= best.width_ticks)
            continue;
        best.ticks = kind == RAT_CLOCK_MONOTONIC ? monotonic : before;
        best.monotonic_ns = monotonic;
        best.realtime_ns = realtime;
        best.width_ticks = width > UINT32_MAX ? UINT32_MAX : (uint32_t)width;
    }
    if (kind == RAT_CLOCK_MONOTONIC)
        best.width_ticks = 0;
    return best;
}

bool rat_anchor_agrees(const struct rat_anchor *from, const struct rat_anchor *to, uint64_t ticks_per_s)
{
    if (to->ticks < from->ticks || to->monotonic_ns < from->monotonic_ns)
        return false;
    double seconds = (double)(to->monotonic_ns - from->monotonic_ns) / 1e9;
    double ticks = (double)(to->ticks - from->ticks);
    double expected = seconds * (double)ticks_per_s;
    double slack = expected / 1000.0 + (double)ticks_per_s / 1000.0 + from->width_ticks + to->width_ticks;
    double off = ticks > expected ? ticks - expected : expected - ticks;
    return off <= slack;
}

#if defined(__x86_64__) && !defined(RAT_FORCE_MONOTONIC)
/* CPUID 8000_0007h EDX bit 8: the TSC runs at one rate in all P-, C- and T-states. */
static bool counter_is_invariant(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8)) != 0;
}
#define COUNTER RAT_CLOCK_TSC
#elif defined(__aarch64__) && !defined(RAT_FORCE_MONOTONIC)
static bool counter_is_invariant(void)
{
    return true; /* the generic timer, by definition of the architecture */
}
#define COUNTER RAT_CLOCK_CNTVCT
#else
static bool counter_is_invariant(void)
{
    return false;
}
#define COUNTER RAT_CLOCK_MONOTONIC
#endif

/* Ticks per second over two halves of a short busy wait; 0 if the halves disagree. */
static uint64_t measure_rate(enum rat_clock_kind kind)
{
    struct rat_anchor at[3];
    for (int i = 0; i < 3; i++) {
        at[i] = rat_anchor_take(kind);
        if (i < 2)
            while (rat_clock_ns(CLOCK_MONOTONIC) - at[i].monotonic_ns < PROBE_NS / 2)
                ;
    }
    if (at[2].ticks <= at[0].ticks)
        return 0;
    double rate = (double)(at[2].ticks - at[0].ticks) * 1e9 / (double)(at[2].monotonic_ns - at[0].monotonic_ns);
    if (rate < 1e6 || rate > 1e11)
        return 0;
    return rat_anchor_agrees(&at[0], &at[1], (uint64_t)rate) && rat_anchor_agrees(&at[1], &at[2], (uint64_t)rate)
        ? (uint64_t)rate
        : 0;
}

enum rat_clock_kind rat_clock_choose(enum rat_clock_kind wanted, uint64_t *ticks_per_s)
{
    if (wanted != RAT_CLOCK_MONOTONIC && COUNTER != RAT_CLOCK_MONOTONIC && counter_is_invariant()) {
        *ticks_per_s = measure_rate(COUNTER);
        if (*ticks_per_s != 0)
            return COUNTER;
    }
    *ticks_per_s = 1000000000u;
    return RAT_CLOCK_MONOTONIC;
}
