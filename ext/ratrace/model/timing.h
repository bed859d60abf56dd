/* timing.h - ticks of one chunk → CLOCK_MONOTONIC ns.
 *
 * Between the chunk's two anchors by interpolation, outside of them at the session's rate from the nearer one. A
 * double holds ticks of a chunk exactly (2^53), and multiplying by one factor keeps their order.
 */
#ifndef RAT_MODEL_TIMING_H
#define RAT_MODEL_TIMING_H

#include <stdint.h>

#include "base/clock.h"

struct rat_timing {
    uint64_t start_ticks, end_ticks;
    uint64_t start_ns, end_ns;
    double within; /* ns per tick */
    double beyond;
};

static inline struct rat_timing rat_timing_of(const struct rat_anchor *start, const struct rat_anchor *end,
                                              uint64_t ticks_per_s)
{
    struct rat_timing timing = {start->ticks, end->ticks, start->monotonic_ns, end->monotonic_ns, 0, 1};
    double rate = ticks_per_s ? 1e9 / (double)ticks_per_s : 0;
    if (end->ticks > start->ticks && end->monotonic_ns >= start->monotonic_ns &&
        end->monotonic_ns - start->monotonic_ns < UINT64_C(1) << 62) {
        timing.within = (double)(end->monotonic_ns - start->monotonic_ns) / (double)(end->ticks - start->ticks);
    } else { /* a recovered chunk has no second anchor */
        timing.end_ticks = timing.start_ticks;
        timing.end_ns = timing.start_ns;
    }
    timing.beyond = rate > 0 ? rate : timing.within > 0 ? timing.within : 1;
    return timing;
}

static inline uint64_t rat_timing_ns(const struct rat_timing *timing, uint64_t ticks)
{
    if (__builtin_expect(ticks - timing->start_ticks <= timing->end_ticks - timing->start_ticks, 1))
        return timing->start_ns + (uint64_t)((double)(ticks - timing->start_ticks) * timing->within);
    if ((int64_t)(ticks - timing->end_ticks) > 0) {
        double ns = (double)(ticks - timing->end_ticks) * timing->beyond;
        return timing->end_ns + (ns < 9e18 ? (uint64_t)ns : UINT64_C(9000000000000000000));
    }
    double ns = (double)(timing->start_ticks - ticks) * timing->beyond;
    return ns < (double)timing->start_ns ? timing->start_ns - (uint64_t)ns : 0;
}

#endif
