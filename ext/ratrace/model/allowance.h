/* allowance.h - memory for a reader of foreign files: every table grows through here and stops at one bound.
 *
 * Threads: one at a time.
 */
#ifndef RAT_MODEL_ALLOWANCE_H
#define RAT_MODEL_ALLOWANCE_H

#include <stddef.h>

#include "base/status.h"

struct rat_allowance {
    size_t used;
    size_t max;
};

/* realloc of `old` from `old_bytes` to `new_bytes`; new bytes are zero. NULL past the bound or without memory: `old`
 * stays as it is. */
void *rat_allowance_resize(struct rat_allowance *allowance, void *old, size_t old_bytes, size_t new_bytes);

/* free, and give the bytes back. */
void rat_allowance_free(struct rat_allowance *allowance, void *old, size_t bytes);

/* Make the table at `table` hold at least `wanted` entries of `size` bytes, doubling `*capacity`. RAT_NO_MEMORY past
 * the bound. */
RAT_MUST_CHECK enum rat_status rat_allowance_grow(struct rat_allowance *allowance, void **table, size_t *capacity,
                                                  size_t wanted, size_t size);

#endif
