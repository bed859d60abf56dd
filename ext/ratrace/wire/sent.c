#include "wire/sent.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

void rat_sent_init(struct rat_sent *sent)
{
    *sent = (struct rat_sent){.frame_room = 0};
}

void rat_sent_free(struct rat_sent *sent)
{
    free(sent->frames);
    free(sent->names);
    free(sent->context_hashes);
    free(sent->contexts_seen);
    free(sent->new_frames.ids);
    free(sent->new_names.ids);
    free(sent->seen_contexts.ids);
    free(sent->new_contexts);
    rat_sent_init(sent);
}

/* Make `*array` of `*room` elements hold at least `wanted`, new ones zero. The dictionary's caps bound it. */
static bool grow(void *array, size_t room, size_t wanted, size_t element)
{
    void *old = *(void **)array;
    uint8_t *bytes = realloc(old, wanted * element);
    if (bytes == NULL)
        return false;
    memset(bytes + room * element, 0, (wanted - room) * element);
    *(void **)array = bytes;
    return true;
}

static uint32_t next_room(uint32_t room, uint32_t highest)
{
    uint64_t wanted = room * UINT64_C(2) > 64 ? room * UINT64_C(2) : 64;
    if (wanted <= highest)
        wanted = highest + UINT64_C(1);
    return wanted > UINT32_MAX ? UINT32_MAX : (uint32_t)wanted;
}

static bool ids_push(struct rat_sent_ids *list, uint32_t id)
{
    if (list->count == list->room) {
        size_t wanted = list->room != 0 ? list->room * 2 : 64;
        if (!grow(&list->ids, list->room, wanted, sizeof *list->ids))
            return false;
        list->room = wanted;
    }
    list->ids[list->count++] = id;
    return true;
}

static void forget_seen_contexts(struct rat_sent *sent)
{
    for (size_t i = 0; i < sent->seen_contexts.count; i++)
        sent->contexts_seen[sent->seen_contexts.ids[i]] = 0;
    sent->seen_contexts.count = 0;
}

void rat_sent_begin_segment(struct rat_sent *sent)
{
    if (sent->frames != NULL)
        memset(sent->frames + 1, 0, sent->frame_room - 1);
    if (sent->names != NULL)
        memset(sent->names + 1, 0, sent->name_room - 1);
    if (sent->context_hashes != NULL)
        memset(sent->context_hashes, 0, sent->context_room * sizeof *sent->context_hashes);
    forget_seen_contexts(sent);
    sent->new_frames.count = sent->new_names.count = sent->new_context_count = 0;
}

enum rat_status rat_sent_begin_chunk(struct rat_sent *sent, const struct rat_dict_view *view)
{
    sent->view = view != NULL ? *view : (struct rat_dict_view){.frame_count = 0};
    if (sent->frames == NULL || sent->view.frame_count >= sent->frame_room) {
        uint32_t room = next_room(sent->frame_room, sent->view.frame_count);
        if (!grow(&sent->frames, sent->frame_room, room, 1))
            return RAT_NO_MEMORY;
        sent->frame_room = room;
        sent->frames[0] = 1;
    }
    if (sent->names == NULL || sent->view.name_count >= sent->name_room) {
        uint32_t room = next_room(sent->name_room, sent->view.name_count);
        if (!grow(&sent->names, sent->name_room, room, 1))
            return RAT_NO_MEMORY;
        sent->name_room = room;
        sent->names[0] = 1;
    }
    if (sent->context_hashes == NULL || sent->view.context_count >= sent->context_room) {
        uint32_t room = next_room(sent->context_room, sent->view.context_count);
        if (!grow(&sent->contexts_seen, sent->context_room, room, 1) ||
            !grow(&sent->context_hashes, sent->context_room, room, sizeof *sent->context_hashes))
            return RAT_NO_MEMORY;
        sent->context_room = room;
    }
    forget_seen_contexts(sent);
    sent->new_frames.chunk = sent->new_frames.count;
    sent->new_names.chunk = sent->new_names.count;
    sent->new_context_chunk = sent->new_context_count;
    return RAT_OK;
}

static enum rat_status use_name(struct rat_sent *sent, rat_name_id id)
{
    if (id > sent->view.name_count)
        return RAT_CORRUPT;
    if (sent->names[id])
        return RAT_OK;
    const struct rat_name_entry *entry = &sent->view.names[id];
    if (entry->length > RAT_NAME_BYTES_MAX || entry->length > sent->view.text_used ||
        entry->at > sent->view.text_used - entry->length)
        return RAT_CORRUPT;
    if (!ids_push(&sent->new_names, id))
        return RAT_NO_MEMORY;
    sent->names[id] = 1;
    return RAT_OK;
}

enum rat_status rat_sent_use_frame(struct rat_sent *sent, rat_frame_id id)
{
    if (id > sent->view.frame_count)
        return RAT_CORRUPT;
    if (sent->frames[id])
        return RAT_OK;
    const struct rat_frame_entry *entry = &sent->view.frames[id];
    const rat_name_id names[] = {entry->owner, entry->method, entry->called, entry->file};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        enum rat_status status = use_name(sent, names[i]);
        if (status != RAT_OK)
            return status;
    }
    if (!ids_push(&sent->new_frames, id))
        return RAT_NO_MEMORY;
    sent->frames[id] = 1;
    return RAT_OK;
}

static enum rat_status pull_context(struct rat_sent *sent, rat_context_id id, const struct rat_context_entry *entry)
{
    uint64_t hash = rat_check_xxh3(entry, sizeof *entry) | 1; /* 0 means none */
    if (hash == sent->context_hashes[id])
        return RAT_OK;
    if (sent->new_context_count == sent->new_context_room) {
        size_t wanted = sent->new_context_room != 0 ? sent->new_context_room * 2 : 16;
        if (!grow(&sent->new_contexts, sent->new_context_room, wanted, sizeof *sent->new_contexts))
            return RAT_NO_MEMORY;
        sent->new_context_room = wanted;
    }
    sent->new_contexts[sent->new_context_count++] = (struct rat_sent_context){
        .id = id,
        .hash_before = sent->context_hashes[id],
        .entry = *entry,
    };
    sent->context_hashes[id] = hash;
    return RAT_OK;
}

/* A loop and not a recursion: a damaged live file may hold a chain or a ring of parents. */
enum rat_status rat_sent_use_context(struct rat_sent *sent, rat_context_id id)
{
    while (id != 0) {
        if (id > sent->view.context_count)
            return RAT_CORRUPT;
        if (sent->contexts_seen[id])
            return RAT_OK;
        if (!ids_push(&sent->seen_contexts, id))
            return RAT_NO_MEMORY;
        sent->contexts_seen[id] = 1;
        struct rat_context_entry entry = sent->view.contexts[id]; /* one copy: its owner may change it meanwhile */
        enum rat_status status = use_name(sent, entry.name);
        if (status == RAT_OK)
            status = pull_context(sent, id, &entry);
        if (status != RAT_OK)
            return status;
        id = entry.parent;
    }
    return RAT_OK;
}

static void undo_from(struct rat_sent *sent, size_t frame, size_t name, size_t context)
{
    for (size_t i = frame; i < sent->new_frames.count; i++)
        sent->frames[sent->new_frames.ids[i]] = 0;
    for (size_t i = name; i < sent->new_names.count; i++)
        sent->names[sent->new_names.ids[i]] = 0;
    for (size_t i = sent->new_context_count; i > context; i--) /* backwards: one id may be there twice */
        sent->context_hashes[sent->new_contexts[i - 1].id] = sent->new_contexts[i - 1].hash_before;
    sent->new_frames.count = frame;
    sent->new_names.count = name;
    sent->new_context_count = context;
    forget_seen_contexts(sent);
}

void rat_sent_undo_chunk(struct rat_sent *sent)
{
    undo_from(sent, sent->new_frames.chunk, sent->new_names.chunk, sent->new_context_chunk);
}

void rat_sent_settle(struct rat_sent *sent, bool written)
{
    if (!written)
        undo_from(sent, 0, 0, 0);
    sent->new_frames.count = sent->new_names.count = sent->new_context_count = 0;
}
