/* header_encoder.h - the clear part of a Chunk: everything of it but the body. Used by encoder.c only.
 *
 * Memory:  the caller's. Threads: any.
 */
#ifndef RAT_WIRE_HEADER_ENCODER_H
#define RAT_WIRE_HEADER_ENCODER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "wire/encoder.h"

struct rat_chunk_body {
    const uint8_t *bytes; /* as they will stand in the file */
    size_t length;
    size_t raw_length;
    enum rat_codec codec;
    uint32_t events;
};

/* Write the Chunk message up to and with the body's tag and length into `to`; `*length` bytes. The body must follow. */
RAT_MUST_CHECK enum rat_status rat_encode_header(const struct rat_chunk_info *info, const struct rat_chunk_body *body,
                                                 uint8_t to[RAT_CHUNK_HEADER_MAX], size_t *length);

#endif
