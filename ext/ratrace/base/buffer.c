#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

void rat_buffer_init(struct rat_buffer *buffer, size_t limit)
{
    *buffer = (struct rat_buffer){.limit = limit};
}

void rat_buffer_free(struct rat_buffer *buffer)
{
    free(buffer->bytes);
    rat_buffer_init(buffer, buffer->limit);
}

enum rat_status rat_buffer_reserve(struct rat_buffer *buffer, size_t extra)
{
    if (extra > buffer->limit || buffer->length > buffer->limit - extra)
        return RAT_TOO_BIG;
    size_t wanted = buffer->length + extra;
    if (wanted <= buffer->capacity)
        return RAT_OK;
    size_t capacity = buffer->capacity < buffer->limit / 2 ? buffer->capacity * 2 : buffer->limit;
    if (capacity < wanted)
        capacity = wanted;
    uint8_t *bytes = realloc(buffer->bytes, capacity);
    if (bytes == NULL)
        return RAT_NO_MEMORY;
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return RAT_OK;
}

enum rat_status rat_buffer_append(struct rat_buffer *buffer, const void *bytes, size_t length)
{
    enum rat_status status = rat_buffer_reserve(buffer, length);
    if (status != RAT_OK)
        return status;
    if (length > 0)
        memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
    return RAT_OK;
}
