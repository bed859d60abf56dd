#include "wire/budget.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_HEAD 16u /* keeps malloc's alignment */

void *rat_budget_alloc(void *data, size_t size)
{
    struct rat_budget *budget = data;
    if (budget->left < BLOCK_HEAD || size > budget->left - BLOCK_HEAD) {
        budget->refused = true;
        return NULL;
    }
    uint8_t *block = malloc(BLOCK_HEAD + size);
    if (block == NULL)
        return NULL;
    memcpy(block, &size, sizeof size);
    budget->left -= BLOCK_HEAD + size;
    return block + BLOCK_HEAD;
}

void rat_budget_free(void *data, void *pointer)
{
    if (pointer == NULL)
        return;
    struct rat_budget *budget = data;
    uint8_t *block = (uint8_t *)pointer - BLOCK_HEAD;
    size_t size;
    memcpy(&size, block, sizeof size);
    budget->left += BLOCK_HEAD + size;
    free(block);
}

void rat_budget_init(struct rat_budget *budget, size_t bytes)
{
    *budget = (struct rat_budget){.allocator = {rat_budget_alloc, rat_budget_free, budget}, .left = bytes};
}
