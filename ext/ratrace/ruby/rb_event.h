/* rb_event.h - a replay's events as Hashes for Ruby.
 *
 * A replay runs without the GVL, so its events are copied into a batch first and made objects of later.
 *
 * Memory:  the batch's owner frees it. Threads: filling by the replay's, yielding with the GVL.
 */
#ifndef RB_RAT_EVENT_H
#define RB_RAT_EVENT_H

#include <ruby.h>
#include <stddef.h>
#include <stdint.h>

#include "model/replay.h"
#include "ruby/rb_reading.h"

struct rb_rat_batch {
    struct rat_replay_event *events;
    size_t count, capacity;
    uint32_t *frames; /* of the snapshots, one behind the other */
    size_t frame_count, frame_capacity;
};

/* A visitor's `event`; user is the batch. */
enum rat_status rb_rat_batch_keep(void *user, const struct rat_replay_event *event);

/* Yield each event as a Hash, and empty the batch. Keys and values: Recording#each_event. */
void rb_rat_batch_yield(struct rb_rat_batch *batch, struct rb_rat_reading *reading);

void rb_rat_batch_free(struct rb_rat_batch *batch);

void rb_rat_event_init(void);

#endif
