/* columns.h - slot words as packed protobuf columns, and which columns an event's kind fills.
 *
 * The columns are packed by hand, in one pass over the words: protobuf-c's packed fields want arrays first and take two
 * passes over them, which costs 1.4 to 2.5 times as much: 7.4 and 13.6 against 5.4 and 5.5 ns an event, and more than
 * zstd takes (test/bench/encoder measures both). The bytes are the same. Everything else of a chunk is rare and goes
 * through protobuf-c.
 *
 * Memory:  the columns are owned here, sized for the worst a slot can hold; untouched pages cost nothing.
 * Threads: one at a time.
 */
#ifndef RAT_WIRE_COLUMNS_H
#define RAT_WIRE_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "record/event.h"
#include "wire/sent.h"

struct rat_columns {
    uint32_t capacity; /* slot words */
    uint32_t events;
    uint8_t *gap, *kind, *id, *rich_words, *rich; /* packed, without tag and length */
    size_t gap_bytes, id_bytes, rich_words_bytes, rich_bytes;
};

RAT_MUST_CHECK enum rat_status rat_columns_new(struct rat_columns *columns, uint32_t capacity);
void rat_columns_free(struct rat_columns *columns);

/* Pack `count` words; a gap prefix is merged into its event. Frames and contexts that events name are pulled into
 * `sent`. RAT_CORRUPT: these are not whole events, time overflows, or an id is not in the dictionary. */
RAT_MUST_CHECK enum rat_status rat_columns_pack(struct rat_columns *columns, const uint64_t *words, uint32_t count,
                                                uint64_t base_ticks, struct rat_sent *sent);

/* Does an event of this kind have an entry in the id column? Unknown plain kinds do. */
static inline bool rat_kind_has_id(uint8_t kind)
{
    return kind < RAT_EVENT_RICH && kind != RAT_EVENT_RETURN && kind != RAT_EVENT_C_RETURN && kind != RAT_EVENT_UNMATCHED;
}

/* Does it have payload words? */
static inline bool rat_kind_is_rich(uint8_t kind)
{
    return kind > RAT_EVENT_RICH;
}

/* Kinds that never stand in a file. */
static inline bool rat_kind_is_wrong(uint8_t kind)
{
    return kind == 0 || kind == RAT_EVENT_GAP;
}

/* Is the payload at least as long as what it says needs? A later version may append to it. */
static inline bool rat_payload_fits(uint8_t kind, const uint64_t *payload, size_t words)
{
    if (kind == RAT_EVENT_SNAPSHOT)
        return words >= 2 && words - 2 >= ((payload[0] & UINT32_MAX) + 1) / 2;
    if (kind == RAT_EVENT_END || kind == RAT_EVENT_NOTE)
        return words >= 1;
    if (kind == RAT_EVENT_GATE)
        return words >= RAT_GATE_WORDS;
    if (kind == RAT_EVENT_COST)
        return words >= RAT_COST_WORDS;
    return true;
}

#endif
