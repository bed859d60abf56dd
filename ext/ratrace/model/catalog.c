#include "model/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "record/event.h"

struct name {
    size_t at;
    uint32_t length;
    bool utf8;
};

/* Open addressing, ids as values, 0 = empty; at most half full. */
struct index {
    uint32_t *ids;
    size_t size; /* power of two or 0 */
    size_t used;
};

struct rat_catalog {
    struct rat_allowance *allowance;
    struct name *names; /* [0] is unused */
    size_t name_count, name_capacity;
    struct rat_catalog_frame *frames;
    size_t frame_count, frame_capacity;
    uint8_t *text;
    size_t text_used, text_capacity;
    struct index by_text, by_frame;
    uint32_t lost_name;
};

static uint64_t name_hash(const uint8_t *text, uint32_t length)
{
    return rat_check_xxh3(text, length);
}

static uint64_t frame_hash(const struct rat_catalog_frame *frame)
{
    return rat_check_xxh3(frame, sizeof *frame);
}

static uint64_t hash_of(const struct rat_catalog *catalog, const struct index *index, uint32_t id)
{
    if (index == &catalog->by_frame)
        return frame_hash(&catalog->frames[id]);
    return name_hash(catalog->text + catalog->names[id].at, catalog->names[id].length);
}

static void put(struct index *index, uint64_t hash, uint32_t id)
{
    size_t at = hash & (index->size - 1);
    while (index->ids[at])
        at = (at + 1) & (index->size - 1);
    index->ids[at] = id;
}

/* Room for one more entry. */
static enum rat_status index_reserve(struct rat_catalog *catalog, struct index *index)
{
    if ((index->used + 1) * 2 <= index->size)
        return RAT_OK;
    struct index more = {.size = index->size ? index->size * 2 : 256, .used = index->used};
    more.ids = rat_allowance_resize(catalog->allowance, NULL, 0, more.size * sizeof *more.ids);
    if (!more.ids)
        return RAT_NO_MEMORY;
    for (size_t i = 0; i < index->size; i++)
        if (index->ids[i])
            put(&more, hash_of(catalog, index, index->ids[i]), index->ids[i]);
    rat_allowance_free(catalog->allowance, index->ids, index->size * sizeof *index->ids);
    *index = more;
    return RAT_OK;
}

static uint32_t find_name(const struct rat_catalog *catalog, const uint8_t *text, uint32_t length, bool utf8,
                          uint64_t hash)
{
    const struct index *index = &catalog->by_text;
    for (size_t at = hash & (index->size - 1); index->ids[at]; at = (at + 1) & (index->size - 1)) {
        const struct name *name = &catalog->names[index->ids[at]];
        if (name->length == length && name->utf8 == utf8 &&
            (length == 0 || memcmp(catalog->text + name->at, text, length) == 0))
            return index->ids[at];
    }
    return 0;
}

enum rat_status rat_catalog_add_name(struct rat_catalog *catalog, const uint8_t *text, uint32_t length, bool utf8,
                                     uint32_t *id)
{
    enum rat_status status = index_reserve(catalog, &catalog->by_text);
    if (status != RAT_OK)
        return status;
    uint64_t hash = name_hash(text, length);
    *id = find_name(catalog, text, length, utf8, hash);
    if (*id)
        return RAT_OK;
    if (catalog->name_count >= UINT32_MAX - 1)
        return RAT_TOO_BIG;
    status = rat_allowance_grow(catalog->allowance, (void **)&catalog->names, &catalog->name_capacity,
                             catalog->name_count + 2, sizeof *catalog->names);
    if (status == RAT_OK)
        status = rat_allowance_grow(catalog->allowance, (void **)&catalog->text, &catalog->text_capacity,
                                 catalog->text_used + length + 1, 1);
    if (status != RAT_OK)
        return status;
    if (length > 0)
        memcpy(catalog->text + catalog->text_used, text, length);
    *id = (uint32_t)++catalog->name_count;
    catalog->names[*id] = (struct name){.at = catalog->text_used, .length = length, .utf8 = utf8};
    catalog->text_used += length;
    put(&catalog->by_text, hash, *id);
    catalog->by_text.used++;
    return RAT_OK;
}

enum rat_status rat_catalog_add_frame(struct rat_catalog *catalog, const struct rat_catalog_frame *frame, uint32_t *id)
{
    enum rat_status status = index_reserve(catalog, &catalog->by_frame);
    if (status != RAT_OK)
        return status;
    uint64_t hash = frame_hash(frame);
    const struct index *index = &catalog->by_frame;
    for (size_t at = hash & (index->size - 1); index->ids[at]; at = (at + 1) & (index->size - 1)) {
        if (memcmp(&catalog->frames[index->ids[at]], frame, sizeof *frame) == 0) {
            *id = index->ids[at];
            return RAT_OK;
        }
    }
    if (catalog->frame_count >= UINT32_MAX - 1)
        return RAT_TOO_BIG;
    status = rat_allowance_grow(catalog->allowance, (void **)&catalog->frames, &catalog->frame_capacity,
                             catalog->frame_count + 2, sizeof *catalog->frames);
    if (status != RAT_OK)
        return status;
    *id = (uint32_t)++catalog->frame_count;
    catalog->frames[*id] = *frame;
    put(&catalog->by_frame, hash, *id);
    catalog->by_frame.used++;
    return RAT_OK;
}

enum rat_status rat_catalog_base_of(struct rat_catalog *catalog, uint32_t frame, uint32_t *id)
{
    struct rat_catalog_frame base = catalog->frames[frame];
    base.kind = RAT_FRAME_BASE;
    return rat_catalog_add_frame(catalog, &base, id);
}

static enum rat_status add_special(struct rat_catalog *catalog, const char *text, uint32_t *name)
{
    uint32_t frame;
    enum rat_status status =
        rat_catalog_add_name(catalog, (const uint8_t *)text, (uint32_t)strlen(text), true, name);
    if (status != RAT_OK)
        return status;
    return rat_catalog_add_frame(
        catalog, &(struct rat_catalog_frame){.method = *name, .kind = RAT_FRAME_SPECIAL}, &frame);
}

enum rat_status rat_catalog_new(struct rat_allowance *allowance, struct rat_catalog **out)
{
    struct rat_catalog *catalog = rat_allowance_resize(allowance, NULL, 0, sizeof *catalog);
    if (!catalog)
        return RAT_NO_MEMORY;
    catalog->allowance = allowance;
    uint32_t name;
    enum rat_status status = add_special(catalog, "(dictionary full)", &name);
    if (status == RAT_OK)
        status = add_special(catalog, "(name lost)", &catalog->lost_name);
    if (status == RAT_OK)
        status = add_special(catalog, "(folded)", &name);
    if (status != RAT_OK) {
        rat_catalog_free(catalog);
        return status;
    }
    *out = catalog;
    return RAT_OK;
}

void rat_catalog_free(struct rat_catalog *catalog)
{
    if (!catalog)
        return;
    struct rat_allowance *allowance = catalog->allowance;
    rat_allowance_free(allowance, catalog->names, catalog->name_capacity * sizeof *catalog->names);
    rat_allowance_free(allowance, catalog->frames, catalog->frame_capacity * sizeof *catalog->frames);
    rat_allowance_free(allowance, catalog->text, catalog->text_capacity);
    rat_allowance_free(allowance, catalog->by_text.ids, catalog->by_text.size * sizeof *catalog->by_text.ids);
    rat_allowance_free(allowance, catalog->by_frame.ids, catalog->by_frame.size * sizeof *catalog->by_frame.ids);
    rat_allowance_free(allowance, catalog, sizeof *catalog);
}

uint32_t rat_catalog_names(const struct rat_catalog *catalog)
{
    return (uint32_t)catalog->name_count;
}

uint32_t rat_catalog_frames(const struct rat_catalog *catalog)
{
    return (uint32_t)catalog->frame_count;
}

struct rat_catalog_name rat_catalog_name(const struct rat_catalog *catalog, uint32_t id)
{
    if (id == 0)
        return (struct rat_catalog_name){.text = (const uint8_t *)"", .utf8 = true};
    const struct name *name = &catalog->names[id];
    return (struct rat_catalog_name){catalog->text + name->at, name->length, name->utf8};
}

const struct rat_catalog_frame *rat_catalog_frame(const struct rat_catalog *catalog, uint32_t id)
{
    return &catalog->frames[id];
}

bool rat_catalog_is_lost(const struct rat_catalog *catalog, uint32_t frame)
{
    const struct rat_catalog_frame *entry = &catalog->frames[frame];
    uint32_t lost = catalog->lost_name;
    return entry->owner == lost || entry->method == lost || entry->called == lost || entry->file == lost;
}

uint32_t rat_catalog_lost_name(const struct rat_catalog *catalog)
{
    return catalog->lost_name;
}
