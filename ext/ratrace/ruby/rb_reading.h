/* rb_reading.h - one pass over segment files for Ruby: owns the replay, turns names and frames into Ruby objects.
 *
 * Memory:  a TypedData object; rb_rat_reading_close frees what is native at once, the GC whatever is left.
 * Threads: the GVL for all but the reading itself.
 */
#ifndef RB_RAT_READING_H
#define RB_RAT_READING_H

#include <ruby.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "model/profile.h"
#include "model/replay.h"

struct rb_rat_reading {
    struct rat_replay *replay;
    struct rat_profile *profile; /* or NULL */
    char **paths;
    size_t path_count;
    size_t memory_max;
    enum rat_status status;
    _Atomic bool cancelled;
    VALUE names;      /* Array: String by the catalog's name id */
    VALUE frames;     /* Array: Hash with symbols by frame id */
    VALUE processes;  /* Array: [pid, session id] by session index */
};

/* A new reading of `paths` (Array of path-like). Raises for wrong arguments. */
VALUE rb_rat_reading_new(VALUE paths, VALUE options, struct rb_rat_reading **out);

/* Begin with this visitor. Raises Ratrace::ReadError. */
void rb_rat_reading_begin(struct rb_rat_reading *reading, const struct rat_visitor *visitor);

/* Read about `events` more without the GVL; 0 = all. False at the end. Raises Ratrace::ReadError, or what interrupts. */
bool rb_rat_reading_go_on(struct rb_rat_reading *reading, uint64_t events);

VALUE rb_rat_reading_close(VALUE object);

/* Frozen, shared within the reading. */
VALUE rb_rat_reading_name(struct rb_rat_reading *reading, uint32_t id);
VALUE rb_rat_reading_frame(struct rb_rat_reading *reading, uint32_t id);

/* The profile's flat table, of one thread or (SIZE_MAX) of all: Array of {frame:, calls:, total_ns:, self_ns:, max_ns:}. */
VALUE rb_rat_reading_rows(struct rb_rat_reading *reading, size_t thread);

/* {sessions: [...], files: [...]}: who was recorded, and what became of every event. */
VALUE rb_rat_reading_account(struct rb_rat_reading *reading);

/* "instance", "c_singleton", ... */
const char *rb_rat_kind_name(uint32_t kind);

#endif
