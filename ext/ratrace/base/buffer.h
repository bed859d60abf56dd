/* buffer.h - bytes that grow up to a limit set at birth.
 *
 * Memory:  the buffer owns its bytes; rat_buffer_free gives them back.
 * Threads: one at a time.
 */
#ifndef RAT_BASE_BUFFER_H
#define RAT_BASE_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct rat_buffer {
    uint8_t *bytes;
    size_t length;
    size_t capacity;
    size_t limit;
};

/* An empty buffer that will never hold more than `limit` bytes. Allocates nothing. */
void rat_buffer_init(struct rat_buffer *buffer, size_t limit);
void rat_buffer_free(struct rat_buffer *buffer);

/* Room for `extra` more bytes behind `length`. RAT_TOO_BIG past the limit, RAT_NO_MEMORY; the content stays. */
RAT_MUST_CHECK enum rat_status rat_buffer_reserve(struct rat_buffer *buffer, size_t extra);

/* Append a copy. Fails as rat_buffer_reserve does. */
RAT_MUST_CHECK enum rat_status rat_buffer_append(struct rat_buffer *buffer, const void *bytes, size_t length);

#endif
