/* fuzz.h - what the fuzzers share. Each is one file named *_fuzz.c; test/fuzz/run builds and runs them. */
#ifndef RAT_TEST_FUZZ_H
#define RAT_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/columns.h"
#include "wire/decoder.h"
#include "wire/encoder.h"
#include "wire/segment.h"

#define MEMORY_MAX (1u << 20) /* small, so that the limit itself is met */

/* A finding. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Read every byte a body gives out, so that the sanitizers see each. */
static inline uint64_t touch_body(const struct rat_body *body)
{
    uint64_t sum = body->base_ticks;
    size_t ids = 0, riches = 0, words = 0;
    for (size_t i = 0; i < body->events; i++) {
        sum += body->gap[i] + body->kind[i];
        if (rat_kind_has_id(body->kind[i]))
            ids++;
        if (rat_kind_is_rich(body->kind[i]))
            words += body->rich_words[riches++];
    }
    MUST(ids == body->ids && riches == body->riches && words == body->rich_total);
    for (size_t i = 0; i < ids; i++)
        MUST(body->id[i] <= RAT_EVENT_ID_MAX);
    for (size_t i = 0; i < words; i++)
        sum += body->rich[i];
    for (size_t i = 0; i < body->name_count; i++)
        for (uint32_t at = 0; at < body->names[i].length; at++)
            sum += body->names[i].text[at];
    for (size_t i = 0; i < body->frame_count; i++)
        sum += body->frames[i].id + body->frames[i].entry.kind;
    for (size_t i = 0; i < body->context_count; i++)
        sum += body->contexts[i].id + body->contexts[i].entry.seen_ticks;
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
