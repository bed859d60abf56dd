/* dictionary.h - names, frames and contexts ↔ dense ids, in the session's mapping.
 *
 * Append-only: an id, once given, means the same for the life of the session. Id 0 = none. Frame 1 is
 * "(dictionary full)": past a table's cap, or past the text area, everything folds into it and is counted.
 * Equal text gives the equal id; equal frames (all six fields) give the equal id.
 *
 * Memory:  tables and text in the mapping, reserved piece by piece through `reserve`; a native hash index beside them
 *          that is this process's own.
 * Threads: add functions take the dictionary's mutex (several Ractors may add), hold it for no call but `reserve`,
 *          and never wait for the serializer. Readers (serializer, recovery, top) take no lock: they read a count
 *          with acquire, then entries up to it.
 * Fork:    the child forgets the dictionary (its mapping is gone) and makes a new one; cached ids are void.
 */
#ifndef RAT_RECORD_DICTIONARY_H
#define RAT_RECORD_DICTIONARY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "record/layout.h"

typedef uint32_t rat_name_id;
typedef uint32_t rat_frame_id;
typedef uint32_t rat_context_id;

#define RAT_DICT_FRAMES 65536u
#define RAT_DICT_NAMES 131072u
#define RAT_DICT_CONTEXTS 65536u
#define RAT_DICT_TEXT (UINT32_C(8) << 20)
#define RAT_NAME_BYTES_MAX 65535u /* longer names are cut there */

/* Caps; all zero = the defaults above. Tests use small ones. */
struct rat_dict_caps {
    uint32_t frames, names, contexts, text;
};

/* Bytes of the tables area (heads and three tables) and of the text area for these caps. */
size_t rat_dict_tables_bytes(const struct rat_dict_caps *caps);
size_t rat_dict_text_bytes(const struct rat_dict_caps *caps);

/* Make `length` bytes from `at` (offset in the mapping) usable; RAT_NO_SPACE where the file cannot grow. */
typedef enum rat_status (*rat_reserve)(void *owner, uint64_t at, uint64_t length);

struct rat_dict;

/* A new, empty dictionary in `mapping` at the two offsets. The caller has zeroed memory there or a fresh file. */
RAT_MUST_CHECK enum rat_status rat_dict_new(uint8_t *mapping, uint64_t tables_at, uint64_t text_at,
                                            const struct rat_dict_caps *caps, rat_reserve reserve, void *owner,
                                            struct rat_dict **out);
void rat_dict_free(struct rat_dict *dict);

/* The id of these bytes; 0 when full. `utf8`: the bytes are valid UTF-8. */
rat_name_id rat_dict_name(struct rat_dict *dict, const void *bytes, size_t length, bool utf8);

/* The id of this frame; RAT_FRAME_FULL when full. */
rat_frame_id rat_dict_frame(struct rat_dict *dict, const struct rat_frame_entry *frame);

/* RAT_FRAME_FULL, counted: for a frame one of whose names did not fit. */
rat_frame_id rat_dict_fold(struct rat_dict *dict);

/* A new context; 0 when full. */
rat_context_id rat_dict_context(struct rat_dict *dict, const struct rat_context_entry *context);

/* Give an id whose context ended to a new one. Only when no chunk that is still to be written uses the old meaning. */
void rat_dict_replace_context(struct rat_dict *dict, rat_context_id id, const struct rat_context_entry *context);

/* What an id of this dictionary stands for; NULL for an id it never gave. Valid as long as the dictionary. */
const struct rat_frame_entry *rat_dict_frame_entry(const struct rat_dict *dict, rat_frame_id id);
const char *rat_dict_name_text(const struct rat_dict *dict, rat_name_id id, size_t *length);

struct rat_dict_head *rat_dict_head(struct rat_dict *dict);

/* A reader's view of somebody's dictionary, checked against the mapping's length; also used by the serializer. */
struct rat_dict_view {
    const struct rat_frame_entry *frames;
    const struct rat_name_entry *names;
    const struct rat_context_entry *contexts;
    const uint8_t *text;
    uint32_t frame_count, name_count, context_count, text_used; /* highest ids, bytes */
};

/* The entries published so far. RAT_CORRUPT where an offset, cap or count does not fit into `mapped` bytes. */
RAT_MUST_CHECK enum rat_status rat_dict_view(const uint8_t *mapping, uint64_t mapped, uint64_t tables_at,
                                             struct rat_dict_view *out);

#endif
