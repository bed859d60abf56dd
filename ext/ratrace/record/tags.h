/* tags.h - a session's tags as one block of bytes: a name, a NUL, a text, a NUL, and the next; an empty name ends them,
 * or the end of the block. A block may be anybody's bytes: what is not whole is no tag.
 *
 * Memory:  the caller's. Threads: any.
 */
#ifndef RAT_RECORD_TAGS_H
#define RAT_RECORD_TAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define RAT_TAGS_MAX 64u
#define RAT_TAGS_BYTES 1152u /* 1024 of names and texts, and their NULs */

/* The next tag, `*at` being 0 for the first; false when there is none. */
static inline bool rat_tags_next(const char tags[RAT_TAGS_BYTES], size_t *at, const char **name, const char **text)
{
    size_t name_end = *at + strnlen(tags + *at, RAT_TAGS_BYTES - *at);
    if (name_end == *at || name_end == RAT_TAGS_BYTES)
        return false;
    size_t text_end = name_end + 1 + strnlen(tags + name_end + 1, RAT_TAGS_BYTES - name_end - 1);
    if (text_end == RAT_TAGS_BYTES)
        return false;
    *name = tags + *at;
    *text = tags + name_end + 1;
    *at = text_end + 1;
    return true;
}

#endif
