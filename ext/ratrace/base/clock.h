/* clock.h - ticks for events, anchors that tie ticks to the kernel's clocks.
 *
 * An event's time is a raw counter: the TSC on x86-64 where it is invariant and passes the start probe, cntvct_el0 on
 * arm64, else CLOCK_MONOTONIC in ns. Readers get CLOCK_MONOTONIC by interpolating between anchors, never by a rate
 * alone, so a drifting or badly calibrated counter costs nothing but a second anchor.
 *
 * Threads: any. Nothing here blocks, allocates or takes a lock.
 */
#ifndef RAT_BASE_CLOCK_H
#define RAT_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__) && !defined(RAT_FORCE_MONOTONIC)
#include <x86intrin.h>
#endif

/* Values are those of ratrace.v1.ClockKind. */
enum rat_clock_kind { RAT_CLOCK_MONOTONIC = 1, RAT_CLOCK_TSC = 2, RAT_CLOCK_CNTVCT = 3 };

/* A tick of RAT_CLOCK_TSC is 8 cycles, 2 to 4 ns. An unfenced read is no sharper, and the bits left out are noise that no
 * compressor takes away: a file of rubocop's 22 million calls and returns has 0.78 bytes an event instead of 1.01. */
#define RAT_TSC_SHIFT 3

/* One moment on all three clocks. `width_ticks` is the uncertainty: the true tick lies within [ticks, ticks + width]. */
struct rat_anchor {
    uint64_t ticks;
    uint64_t monotonic_ns;
    uint64_t realtime_ns;
    uint32_t width_ticks;
    uint32_t reserved;
};

static inline uint64_t rat_clock_ns(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* CLOCK_MONOTONIC in ns, out of line: the hook that reads the counter then needs no stack for it. */
uint64_t rat_clock_monotonic(void);

/* Now, on the clock `kind`. The counter is read without a fence: an event's time may be off by what the CPU reorders. */
static inline __attribute__((always_inline)) uint64_t rat_clock_ticks(enum rat_clock_kind kind)
{
#if defined(__x86_64__) && !defined(RAT_FORCE_MONOTONIC)
    if (__builtin_expect(kind == RAT_CLOCK_TSC, 1))
        return __rdtsc() >> RAT_TSC_SHIFT;
#elif defined(__aarch64__) && !defined(RAT_FORCE_MONOTONIC)
    if (__builtin_expect(kind == RAT_CLOCK_CNTVCT, 1)) {
        uint64_t ticks;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#else
    (void)kind;
#endif
    return rat_clock_monotonic();
}

/* The clock this machine allows, with its rate in ticks per second (measured over about 1 ms; exact for MONOTONIC).
 * `wanted` 0 = the best; RAT_CLOCK_MONOTONIC forces the fallback, as RATRACE_CLOCK=monotonic does. */
enum rat_clock_kind rat_clock_choose(enum rat_clock_kind wanted, uint64_t *ticks_per_s);

/* The best of several tries at reading all clocks at one moment. */
struct rat_anchor rat_anchor_take(enum rat_clock_kind kind);

/* Did the counter run at `ticks_per_s` between two anchors? Tolerates 1 part in 1,000 and 1 ms. False = clock break. */
bool rat_anchor_agrees(const struct rat_anchor *from, const struct rat_anchor *to, uint64_t ticks_per_s);

/* The clock's name: "tsc", "cntvct" or "monotonic". */
const char *rat_clock_name(enum rat_clock_kind kind);

#endif
