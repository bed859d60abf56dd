/* scope.h - the ids of one segment's dictionary, translated to those of the catalog.
 *
 * Ids in a file mean something within one segment of one session only. Entries may come in any order, and again: the
 * closing chunk repeats them all.
 *
 * Memory:  in the allowance given. Threads: one at a time.
 */
#ifndef RAT_MODEL_SCOPE_H
#define RAT_MODEL_SCOPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/allowance.h"
#include "model/catalog.h"
#include "record/event.h"
#include "wire/decoder.h"

/* The recorder's caps are far below; an id above is damage. */
#define RAT_SCOPE_IDS_MAX (1u << 24)

struct rat_scope {
    uint32_t *names, *frames, *bases; /* by id; 0 = not seen (bases: not asked yet) */
    size_t name_capacity, frame_capacity, base_capacity;
};

void rat_scope_free(struct rat_scope *scope, struct rat_allowance *allowance);

/* Take in a body's names and frames. RAT_NO_MEMORY. */
RAT_MUST_CHECK enum rat_status rat_scope_add(struct rat_scope *scope, struct rat_allowance *allowance,
                                             struct rat_catalog *catalog, const struct rat_body *body);

/* The catalog's frame for an id; RAT_CATALOG_LOST for one never seen. */
static inline uint32_t rat_scope_frame(const struct rat_scope *scope, uint32_t id)
{
    uint32_t frame = __builtin_expect(id < scope->frame_capacity, 1) ? scope->frames[id] : 0;
    if (__builtin_expect(frame == 0, 0))
        return id == RAT_FRAME_FULL ? RAT_CATALOG_FULL : RAT_CATALOG_LOST;
    return frame;
}

/* The same frame as open when recording started. */
RAT_MUST_CHECK enum rat_status rat_scope_base(struct rat_scope *scope, struct rat_allowance *allowance,
                                              struct rat_catalog *catalog, uint32_t id, uint32_t *frame);

/* The catalog's name for an id; 0 stays 0. */
uint32_t rat_scope_name(const struct rat_scope *scope, const struct rat_catalog *catalog, uint32_t id);

#endif
