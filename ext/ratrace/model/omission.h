/* omission.h - what scoped tracing left out on purpose: the governor's gates, as the stream tells of them.
 *
 * A site (a method body) that is closed counts its calls; gate events carry the count since the recording began, so the
 * newest of a site tells all of it, whatever was lost between. A span is from a closing to the opening behind it.
 *
 * Memory:  in the allowance given; sites and spans beyond the bounds below are added up.
 * Threads: one at a time.
 */
#ifndef RAT_MODEL_OMISSION_H
#define RAT_MODEL_OMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/allowance.h"

#define RAT_OMISSION_SITES 4096u /* a power of two; half of them are used */
#define RAT_OMISSION_SPANS 65536u

struct rat_omission_span {
    uint32_t site, frame; /* frame: of the catalog */
    uint64_t from_ns;
    uint64_t to_ns;       /* 0 = closed to the end of the data */
    uint64_t left_out;
};

struct rat_omission_site {
    uint32_t site;  /* 0 = none */
    uint32_t span;  /* index + 1 of its open span; 0 = open */
    uint64_t count; /* left out, as told last */
    uint64_t ns;    /* when */
};

struct rat_omission {
    struct rat_omission_site *sites; /* hashed by number, RAT_OMISSION_SITES of them; NULL = no event yet */
    uint32_t site_count;
    struct rat_omission_span *spans; /* in order of from_ns */
    size_t span_count, span_capacity;
    uint64_t left_out;  /* of all sites */
    uint64_t untold;    /* gate events beyond the bounds */
};

/* One gate event. `payload` has RAT_GATE_WORDS words; `frame` is its frame in the catalog. */
RAT_MUST_CHECK enum rat_status rat_omission_add(struct rat_omission *omission, struct rat_allowance *allowance,
                                                const uint64_t *payload, uint32_t frame, uint64_t ns);
void rat_omission_free(struct rat_omission *omission, struct rat_allowance *allowance);

#endif
