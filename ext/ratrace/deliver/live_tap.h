/* live_tap.h - what a living process records, from its live file, as chunks: for `ratrace top` and `ratrace tail`.
 *
 * Each look takes what both slots of every lane hold beyond the last look, and encodes it as the serializer would, so
 * that whatever reads segments reads this. Sequences, totals and the segment number in these chunks are the tap's own:
 * they begin with the tap, and a chunk ends where the look found the cursor. A chunk that begins inside an interval is
 * led in by a switch event to the context that was current there.
 *
 * A slot keeps what it holds for a whole period after it was flipped. Whoever looks less often misses intervals; the
 * slots' opening totals say how many events were in them, and the sequence of the next chunk leaves a gap.
 *
 * The process notices nothing: see live_view.h.
 *
 * Memory:  the view's, an encoder's, and the chunks of one look.
 * Threads: one at a time. Not for files of this process (rat_live_is_own).
 */
#ifndef RAT_DELIVER_LIVE_TAP_H
#define RAT_DELIVER_LIVE_TAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "record/layout.h"

struct rat_tap;

struct rat_tap_counts {
    uint64_t events;  /* taken so far */
    uint64_t missed;  /* were flipped and written before they were seen */
    uint64_t dropped; /* by the producers, since the tap was opened */
    bool over;        /* the process or its recording has ended: all of it was seen */
};

/* Tap the live file `name` in `dir_fd`. Errors as rat_live_view_open; RAT_BUSY: it is not ready yet; RAT_END: its owner
 * is dead. */
RAT_MUST_CHECK enum rat_status rat_tap_open(int dir_fd, const char *name, const char *out_dir, struct rat_tap **out);
void rat_tap_free(struct rat_tap *tap);

/* Whose it is. */
const struct rat_live_head *rat_tap_head(const struct rat_tap *tap);

/* Look once. `bytes` are valid until the next look; none when nothing new was recorded. `now`: a moment not after any
 * event of a later look. RAT_CORRUPT: the file contradicts itself. RAT_NO_MEMORY, RAT_TOO_BIG, RAT_IO. */
RAT_MUST_CHECK enum rat_status rat_tap_look(struct rat_tap *tap, const uint8_t **bytes, size_t *length,
                                            struct rat_anchor *now);

struct rat_tap_counts rat_tap_counts(const struct rat_tap *tap);

#endif
