/* put_bench - calls of rat_lane_put to be counted by callgrind (see count).
 *
 *   put_bench put N     N plain events into one slot
 *   put_bench empty N   the same loop around a function that does nothing
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fence.h"
#include "record/lane.h"

static struct rat_lane_head lane;
static struct rat_lane_producer producer;
static struct rat_lane_consumer consumer;

static __attribute__((noinline, noclone)) bool put(uint64_t event, uint64_t now)
{
    return rat_lane_put(&producer, event, now, false);
}

static __attribute__((noinline, noclone)) bool empty(uint64_t event, uint64_t now)
{
    __asm__ volatile("" : : "r"(event), "r"(now));
    return true;
}

/* Separate loops: the calls must be direct ones. */
static long run_put(long count)
{
    long stored = 0;
    for (long i = 0; i < count; i++)
        stored += put(rat_event_word(RAT_EVENT_CALL, 7), (uint64_t)i);
    return stored;
}

static long run_empty(long count)
{
    long stored = 0;
    for (long i = 0; i < count; i++)
        stored += empty(rat_event_word(RAT_EVENT_CALL, 7), (uint64_t)i);
    return stored;
}

int main(int argc, char **argv)
{
    long count = argc == 3 ? atol(argv[2]) : 0;
    if (count <= 0 || count > (long)(RAT_SLOT_BYTES_MAX / sizeof(uint64_t))) {
        fputs("put_bench put|empty N\n", stderr);
        return 2;
    }
    uint64_t *slots = aligned_alloc(4096, 2 * (size_t)RAT_SLOT_BYTES_MAX);
    struct rat_anchor anchor = {.ticks = 0};
    enum rat_drop_cause cause;
    if (slots == NULL)
        return 1;
    rat_lane_open(&lane, slots, RAT_SLOT_BYTES_MAX, &anchor, &producer, &consumer, RAT_FENCE_MEMBARRIER);
    if (rat_lane_turn(&producer, 0, &cause) != RAT_TURN_OPENED)
        return 1;
    long stored = strcmp(argv[1], "put") == 0 ? run_put(count) : run_empty(count);
    free(slots);
    return stored == count ? 0 : 1;
}
