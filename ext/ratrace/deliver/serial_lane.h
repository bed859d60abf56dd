/* serial_lane.h - the serializer's side of one lane: what is drained and not yet written, what is lost and not yet told.
 *
 * Memory:  lies in the struct rat_serializer.
 * Threads: the serializer, but for what is marked `lock`.
 */
#ifndef RAT_DELIVER_SERIAL_LANE_H
#define RAT_DELIVER_SERIAL_LANE_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "record/lane.h"
#include "wire/encoder.h"

#define RAT_SERIAL_LABELS 8 /* losses of one lane not yet told; further ones are merged into the last */

struct rat_serial_lane {
    struct rat_lane_consumer consumer;
    _Atomic uint32_t added; /* stored last, by the thread that opens the lane */
    /* the thread's own */
    struct rat_totals totals; /* closed totals of the newest chunk, written or given up */
    struct rat_drain drain;   /* while consumer.drained */
    struct rat_anchor end;
    enum rat_reason reason;
    struct rat_lost_label lost[RAT_SERIAL_LABELS];
    uint32_t lost_count;
    uint64_t settled_stored, settled_seq; /* lock: S up to this sequence, for stats */
};

struct rat_serializer;

/* Step 4 for a lane whose consumer holds a drain: encode unless that is done, append, settle. RAT_OK also when the chunk
 * had to be given up. Else the drain stays, for another try. */
RAT_MUST_CHECK enum rat_status rat_serial_lane_write(struct rat_serializer *serializer, struct rat_serial_lane *lane,
                                                     uint32_t index);

/* At stop, when nothing is left to drain: a chunk without events for what no chunk has told yet, if there is anything:
 * the last drops, labels, and the loss of a disabled lane. */
RAT_MUST_CHECK enum rat_status rat_serial_lane_finish(struct rat_serializer *serializer, struct rat_serial_lane *lane,
                                                      uint32_t index);

#endif
