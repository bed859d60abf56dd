#include "record/dictionary.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "record/event.h"

_Static_assert(RAT_DICT_FRAMES <= RAT_EVENT_ID_MAX && RAT_DICT_CONTEXTS <= RAT_EVENT_ID_MAX &&
                   RAT_DICT_NAMES <= RAT_EVENT_ID_MAX,
               "an event word has room for every frame and context, and readers refuse larger ids of names, too");

#define STEP (UINT64_C(256) << 10) /* bytes reserved at a time */

/* Open addressing from a hash to ids of one table; the entries themselves are compared. */
struct index {
    uint32_t *ids;
    uint32_t mask;
};

/* A stretch of the mapping that is reserved as it fills. */
struct area {
    uint64_t at, used, reserved, length;
};

struct rat_dict {
    uint8_t *mapping;
    struct rat_dict_head *head;
    struct rat_frame_entry *frames;
    struct rat_name_entry *names;
    struct rat_context_entry *contexts;
    uint8_t *text;
    struct area frame_area, name_area, context_area, text_area;
    struct index frame_index, name_index;
    rat_reserve reserve;
    void *owner;
    pthread_mutex_t lock;
};

static struct rat_dict_caps caps_or_default(const struct rat_dict_caps *caps)
{
    struct rat_dict_caps all = {RAT_DICT_FRAMES, RAT_DICT_NAMES, RAT_DICT_CONTEXTS, RAT_DICT_TEXT};
    return caps != NULL && caps->frames != 0 ? *caps : all;
}

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + 4095) & ~UINT64_C(4095);
}

#define HEAD_BYTES page_up(sizeof(struct rat_dict_head))

size_t rat_dict_tables_bytes(const struct rat_dict_caps *caps)
{
    struct rat_dict_caps c = caps_or_default(caps);
    return HEAD_BYTES + page_up((c.frames + UINT64_C(1)) * sizeof(struct rat_frame_entry)) +
           page_up((c.names + UINT64_C(1)) * sizeof(struct rat_name_entry)) +
           page_up((c.contexts + UINT64_C(1)) * sizeof(struct rat_context_entry));
}

size_t rat_dict_text_bytes(const struct rat_dict_caps *caps)
{
    return page_up(caps_or_default(caps).text);
}

static enum rat_status index_new(struct index *index, uint32_t cap)
{
    uint32_t size = 16;
    while (size < cap + cap / 2)
        size *= 2;
    index->ids = calloc(size, sizeof *index->ids);
    index->mask = size - 1;
    return index->ids != NULL ? RAT_OK : RAT_NO_MEMORY;
}

/* `extra` bytes more at the end of an area, reserved in the file. */
static bool area_room(struct rat_dict *dict, struct area *area, uint64_t extra)
{
    if (extra > area->length - area->used)
        return false;
    uint64_t wanted = area->used + extra;
    if (wanted <= area->reserved)
        return true;
    uint64_t upto = (wanted + STEP - 1) / STEP * STEP;
    if (upto > area->length)
        upto = area->length;
    if (dict->reserve(dict->owner, area->at + area->reserved, upto - area->reserved) != RAT_OK)
        return false;
    area->reserved = upto;
    return true;
}

static void *table(struct rat_dict *dict, struct area *area, uint64_t *at, uint64_t entries, size_t entry)
{
    *area = (struct area){.at = *at, .used = entry, .length = page_up(entries * entry)};
    *at += area->length;
    return dict->mapping + area->at;
}

enum rat_status rat_dict_new(uint8_t *mapping, uint64_t tables_at, uint64_t text_at, const struct rat_dict_caps *caps,
                             rat_reserve reserve, void *owner, struct rat_dict **out)
{
    struct rat_dict_caps c = caps_or_default(caps);
    struct rat_dict *dict = calloc(1, sizeof *dict);
    if (dict == NULL)
        return RAT_NO_MEMORY;
    dict->mapping = mapping;
    dict->reserve = reserve;
    dict->owner = owner;
    dict->head = (struct rat_dict_head *)(void *)(mapping + tables_at);
    pthread_mutex_init(&dict->lock, NULL);
    enum rat_status status = reserve(owner, tables_at, HEAD_BYTES);
    if (status == RAT_OK)
        status = index_new(&dict->frame_index, c.frames);
    if (status == RAT_OK)
        status = index_new(&dict->name_index, c.names);
    if (status != RAT_OK)
        goto failed;

    uint64_t at = tables_at + HEAD_BYTES;
    dict->frames = table(dict, &dict->frame_area, &at, c.frames + UINT64_C(1), sizeof *dict->frames);
    dict->names = table(dict, &dict->name_area, &at, c.names + UINT64_C(1), sizeof *dict->names);
    dict->contexts = table(dict, &dict->context_area, &at, c.contexts + UINT64_C(1), sizeof *dict->contexts);
    dict->text_area = (struct area){.at = text_at, .length = page_up(c.text)};
    dict->text = mapping + text_at;
    struct rat_dict_head *head = dict->head;
    head->frame_cap = c.frames;
    head->name_cap = c.names;
    head->context_cap = c.contexts;
    head->text_cap = c.text;
    head->frames_at = dict->frame_area.at;
    head->names_at = dict->name_area.at;
    head->contexts_at = dict->context_area.at;
    head->text_at = text_at;

    static const char full[] = "(dictionary full)";
    struct rat_frame_entry frame = {.kind = RAT_FRAME_SPECIAL};
    frame.method = rat_dict_name(dict, full, sizeof full - 1, true);
    if (frame.method == 0 || rat_dict_frame(dict, &frame) != RAT_FRAME_FULL) {
        status = RAT_NO_SPACE;
        goto failed;
    }
    *out = dict;
    return RAT_OK;

failed:
    rat_dict_free(dict);
    return status;
}

void rat_dict_free(struct rat_dict *dict)
{
    if (dict == NULL)
        return;
    free(dict->frame_index.ids);
    free(dict->name_index.ids);
    pthread_mutex_destroy(&dict->lock);
    free(dict);
}

struct rat_dict_head *rat_dict_head(struct rat_dict *dict)
{
    return dict->head;
}

static rat_name_id name_find_or_add(struct rat_dict *dict, const void *bytes, uint32_t length, bool utf8)
{
    struct rat_dict_head *head = dict->head;
    uint32_t slot = (uint32_t)rat_check_xxh3(bytes, length) & dict->name_index.mask;
    for (; dict->name_index.ids[slot] != 0; slot = (slot + 1) & dict->name_index.mask) {
        rat_name_id id = dict->name_index.ids[slot];
        const struct rat_name_entry *entry = &dict->names[id];
        if (entry->length == length && entry->utf8 == utf8 && memcmp(dict->text + entry->at, bytes, length) == 0)
            return id;
    }
    uint32_t count = atomic_load_explicit(&head->names, memory_order_relaxed);
    uint32_t used = (uint32_t)dict->text_area.used;
    if (count == head->name_cap || length > head->text_cap - used || !area_room(dict, &dict->text_area, length) ||
        !area_room(dict, &dict->name_area, sizeof *dict->names))
        return 0;
    memcpy(dict->text + used, bytes, length);
    dict->text_area.used += length;
    dict->name_area.used += sizeof *dict->names;
    dict->names[count + 1] = (struct rat_name_entry){.at = used, .length = length, .utf8 = utf8};
    dict->name_index.ids[slot] = count + 1;
    atomic_store_explicit(&head->text_used, used + length, memory_order_release);
    atomic_store_explicit(&head->names, count + 1, memory_order_release); /* entry first, for readers */
    return count + 1;
}

rat_name_id rat_dict_name(struct rat_dict *dict, const void *bytes, size_t length, bool utf8)
{
    if (length > RAT_NAME_BYTES_MAX) {
        length = RAT_NAME_BYTES_MAX;
        utf8 = false; /* the cut may fall into a character */
    }
    pthread_mutex_lock(&dict->lock);
    rat_name_id id = name_find_or_add(dict, bytes, (uint32_t)length, utf8);
    pthread_mutex_unlock(&dict->lock);
    return id;
}

rat_frame_id rat_dict_fold(struct rat_dict *dict)
{
    atomic_fetch_add_explicit(&dict->head->folded, 1, memory_order_relaxed); /* only shown */
    return RAT_FRAME_FULL;
}

static rat_frame_id frame_find_or_add(struct rat_dict *dict, const struct rat_frame_entry *frame)
{
    struct rat_dict_head *head = dict->head;
    uint32_t slot = (uint32_t)rat_check_xxh3(frame, sizeof *frame) & dict->frame_index.mask;
    for (; dict->frame_index.ids[slot] != 0; slot = (slot + 1) & dict->frame_index.mask)
        if (memcmp(&dict->frames[dict->frame_index.ids[slot]], frame, sizeof *frame) == 0)
            return dict->frame_index.ids[slot];
    uint32_t count = atomic_load_explicit(&head->frames, memory_order_relaxed);
    if (count == head->frame_cap || !area_room(dict, &dict->frame_area, sizeof *frame))
        return rat_dict_fold(dict);
    dict->frame_area.used += sizeof *frame;
    dict->frames[count + 1] = *frame;
    dict->frame_index.ids[slot] = count + 1;
    atomic_store_explicit(&head->frames, count + 1, memory_order_release);
    return count + 1;
}

rat_frame_id rat_dict_frame(struct rat_dict *dict, const struct rat_frame_entry *frame)
{
    pthread_mutex_lock(&dict->lock);
    rat_frame_id id = frame_find_or_add(dict, frame);
    pthread_mutex_unlock(&dict->lock);
    return id;
}

rat_context_id rat_dict_context(struct rat_dict *dict, const struct rat_context_entry *context)
{
    struct rat_dict_head *head = dict->head;
    rat_context_id id = 0;
    pthread_mutex_lock(&dict->lock);
    uint32_t count = atomic_load_explicit(&head->contexts, memory_order_relaxed);
    if (count < head->context_cap && area_room(dict, &dict->context_area, sizeof *context)) {
        dict->context_area.used += sizeof *context;
        id = count + 1;
        dict->contexts[id] = *context;
        atomic_store_explicit(&head->contexts, id, memory_order_release);
    }
    pthread_mutex_unlock(&dict->lock);
    return id;
}

void rat_dict_replace_context(struct rat_dict *dict, rat_context_id id, const struct rat_context_entry *context)
{
    pthread_mutex_lock(&dict->lock);
    if (id != 0 && id <= atomic_load_explicit(&dict->head->contexts, memory_order_relaxed))
        dict->contexts[id] = *context;
    pthread_mutex_unlock(&dict->lock);
}

const struct rat_frame_entry *rat_dict_frame_entry(const struct rat_dict *dict, rat_frame_id id)
{
    return id != 0 && id <= atomic_load_explicit(&dict->head->frames, memory_order_acquire) ? &dict->frames[id] : NULL;
}

const char *rat_dict_name_text(const struct rat_dict *dict, rat_name_id id, size_t *length)
{
    if (id == 0 || id > atomic_load_explicit(&dict->head->names, memory_order_acquire))
        return NULL;
    *length = dict->names[id].length;
    return (const char *)dict->text + dict->names[id].at;
}

/* ---------------------------------------------------------------- readers */

static bool fits(uint64_t mapped, uint64_t at, uint64_t entries, uint64_t entry)
{
    return at <= mapped && at % 8 == 0 && entries <= (mapped - at) / entry;
}

enum rat_status rat_dict_view(const uint8_t *mapping, uint64_t mapped, uint64_t tables_at, struct rat_dict_view *out)
{
    if (!fits(mapped, tables_at, 1, sizeof(struct rat_dict_head)))
        return RAT_CORRUPT;
    const struct rat_dict_head *head = (const void *)(mapping + tables_at);
    struct rat_dict_view view = {
        .frame_count = atomic_load_explicit(&head->frames, memory_order_acquire),
        .context_count = atomic_load_explicit(&head->contexts, memory_order_acquire),
        .name_count = atomic_load_explicit(&head->names, memory_order_acquire), /* after those that refer to names */
        .text_used = atomic_load_explicit(&head->text_used, memory_order_acquire),
    };
    uint64_t frames_at = head->frames_at, names_at = head->names_at, contexts_at = head->contexts_at,
             text_at = head->text_at; /* once: a living process may be hostile */
    if (!fits(mapped, frames_at, view.frame_count + UINT64_C(1), sizeof *view.frames) ||
        !fits(mapped, names_at, view.name_count + UINT64_C(1), sizeof *view.names) ||
        !fits(mapped, contexts_at, view.context_count + UINT64_C(1), sizeof *view.contexts) ||
        !fits(mapped, text_at, view.text_used, 1))
        return RAT_CORRUPT;
    view.frames = (const void *)(mapping + frames_at);
    view.names = (const void *)(mapping + names_at);
    view.contexts = (const void *)(mapping + contexts_at);
    view.text = mapping + text_at;
    *out = view;
    return RAT_OK;
}
