/* catalog.h - names and frames of all that is read, by content: the same method of two segments, or of two processes,
 * has one id here.
 *
 * Memory:  owned by the catalog, counted in the allowance given. Texts move when names are added.
 * Threads: one at a time.
 */
#ifndef RAT_MODEL_CATALOG_H
#define RAT_MODEL_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/allowance.h"

/* Ids every catalog has. 0 = none. */
enum rat_catalog_special {
    RAT_CATALOG_FULL = 1,   /* "(dictionary full)": the recorder had no room for the name */
    RAT_CATALOG_LOST = 2,   /* "(name lost)": its dictionary entry is in no chunk that can be read */
    RAT_CATALOG_FOLDED = 3, /* "(folded)": calls beyond a profile's bound */
};

struct rat_catalog_name {
    const uint8_t *text;
    uint32_t length;
    bool utf8;
};

/* As struct rat_frame_entry, with name ids of the catalog. */
struct rat_catalog_frame {
    uint32_t owner, method, called, file, line, kind;
};

struct rat_catalog;

RAT_MUST_CHECK enum rat_status rat_catalog_new(struct rat_allowance *allowance, struct rat_catalog **out);
void rat_catalog_free(struct rat_catalog *catalog);

RAT_MUST_CHECK enum rat_status rat_catalog_add_name(struct rat_catalog *catalog, const uint8_t *text, uint32_t length,
                                                    bool utf8, uint32_t *id);
RAT_MUST_CHECK enum rat_status rat_catalog_add_frame(struct rat_catalog *catalog, const struct rat_catalog_frame *frame,
                                                     uint32_t *id);

/* The same frame as open when recording started (kind RAT_FRAME_BASE): another id, so that its time is told apart. */
RAT_MUST_CHECK enum rat_status rat_catalog_base_of(struct rat_catalog *catalog, uint32_t frame, uint32_t *id);

/* Highest ids in use. */
uint32_t rat_catalog_names(const struct rat_catalog *catalog);
uint32_t rat_catalog_frames(const struct rat_catalog *catalog);

/* The entry of an id in use; the name's text is valid until the next name is added. Name 0 is empty. */
struct rat_catalog_name rat_catalog_name(const struct rat_catalog *catalog, uint32_t id);
const struct rat_catalog_frame *rat_catalog_frame(const struct rat_catalog *catalog, uint32_t id);

/* One of its names could not be read, so it may be any frame. */
bool rat_catalog_is_lost(const struct rat_catalog *catalog, uint32_t frame);

/* The name "(name lost)". */
uint32_t rat_catalog_lost_name(const struct rat_catalog *catalog);

#endif
