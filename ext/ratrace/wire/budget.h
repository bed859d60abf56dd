/* budget.h - an allocator for protobuf-c that counts, so that hostile bytes cannot make it take more than they may.
 *
 * Memory:  each block remembers its size in front of it; all come from malloc.
 * Threads: one at a time.
 */
#ifndef RAT_WIRE_BUDGET_H
#define RAT_WIRE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

struct rat_budget {
    ProtobufCAllocator allocator; /* to hand to protobuf-c */
    size_t left;
    bool refused; /* an allocation failed for lack of budget and not of memory */
};

void rat_budget_init(struct rat_budget *budget, size_t bytes);

/* As malloc and free; `budget` is a struct rat_budget, untyped because protobuf-c calls these, too. */
void *rat_budget_alloc(void *budget, size_t size);
void rat_budget_free(void *budget, void *pointer);

#endif
