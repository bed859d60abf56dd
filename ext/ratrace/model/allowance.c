#include "model/allowance.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *rat_allowance_resize(struct rat_allowance *allowance, void *old, size_t old_bytes, size_t new_bytes)
{
    if (new_bytes > old_bytes && new_bytes - old_bytes > allowance->max - allowance->used)
        return NULL;
    uint8_t *fresh = realloc(old, new_bytes);
    if (!fresh)
        return NULL;
    if (new_bytes > old_bytes)
        memset(fresh + old_bytes, 0, new_bytes - old_bytes);
    allowance->used = allowance->used - old_bytes + new_bytes;
    return fresh;
}

void rat_allowance_free(struct rat_allowance *allowance, void *old, size_t bytes)
{
    free(old);
    allowance->used -= bytes;
}

enum rat_status rat_allowance_grow(struct rat_allowance *allowance, void **table, size_t *capacity, size_t wanted,
                                   size_t size)
{
    if (wanted <= *capacity)
        return RAT_OK;
    size_t more = *capacity ? *capacity * 2 : 16;
    if (more < wanted)
        more = wanted;
    if (more > SIZE_MAX / size)
        return RAT_NO_MEMORY;
    void *fresh = rat_allowance_resize(allowance, *table, *capacity * size, more * size);
    if (!fresh)
        return RAT_NO_MEMORY;
    *table = fresh;
    *capacity = more;
    return RAT_OK;
}
