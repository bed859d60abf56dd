#include "ruby/rb_event.h"

#include <stdlib.h>
#include <string.h>

static VALUE key_type, key_time, key_lane, key_context, key_process, key_session, key_owner, key_method, key_called,
    key_kind, key_file, key_line, key_count, key_frames, key_base, key_reason, key_note, key_value;

static enum rat_status make_room(void **table, size_t *capacity, size_t wanted, size_t size)
{
    if (wanted <= *capacity)
        return RAT_OK;
    size_t more = wanted * 2;
    void *fresh = realloc(*table, more * size);
    if (!fresh)
        return RAT_NO_MEMORY;
    *table = fresh;
    *capacity = more;
    return RAT_OK;
}

enum rat_status rb_rat_batch_keep(void *user, const struct rat_replay_event *event)
{
    struct rb_rat_batch *batch = user;
    enum rat_status status =
        make_room((void **)&batch->events, &batch->capacity, batch->count + 1, sizeof *batch->events);
    if (status == RAT_OK)
        status = make_room((void **)&batch->frames, &batch->frame_capacity, batch->frame_count + event->frame_count,
                           sizeof *batch->frames);
    if (status != RAT_OK)
        return status;
    if (event->frame_count > 0)
        memcpy(batch->frames + batch->frame_count, event->frames, event->frame_count * sizeof *batch->frames);
    batch->frame_count += event->frame_count;
    batch->events[batch->count++] = *event;
    return RAT_OK;
}

static VALUE word(const char *text)
{
    return rb_interned_str_cstr(text);
}

static VALUE type_of(enum rat_event_kind kind)
{
    switch (kind) {
#define CASE(code, number, name)                                                                   \
    case number:                                                                                   \
        return word(name);
        RAT_EVENT_LIST(CASE)
#undef CASE
    }
    return Qnil;
}

static void set_frame(VALUE hash, struct rb_rat_reading *reading, uint32_t id)
{
    struct rat_catalog_frame frame = *rat_catalog_frame(rat_replay_catalog(reading->replay), id);
    rb_hash_aset(hash, key_owner, rb_rat_reading_name(reading, frame.owner));
    rb_hash_aset(hash, key_method, rb_rat_reading_name(reading, frame.method));
    rb_hash_aset(hash, key_called, rb_rat_reading_name(reading, frame.called));
    rb_hash_aset(hash, key_kind, word(rb_rat_kind_name(frame.kind)));
    rb_hash_aset(hash, key_file, rb_rat_reading_name(reading, frame.file));
    rb_hash_aset(hash, key_line, UINT2NUM(frame.line));
}

static void set_snapshot(VALUE hash, struct rb_rat_reading *reading, const struct rat_replay_event *event,
                         const uint32_t *frames)
{
    static const char *const reasons[] = {"unknown", "start", "slot", "repair"};
    VALUE list = rb_ary_new_capa((long)event->frame_count);
    for (uint32_t i = 0; i < event->frame_count; i++) {
        VALUE frame = rb_hash_new();
        uint32_t kind = rat_catalog_frame(rat_replay_catalog(reading->replay), frames[i])->kind;
        set_frame(frame, reading, frames[i]);
        rb_hash_aset(frame, key_base, kind == RAT_FRAME_BASE ? Qtrue : Qfalse);
        rb_ary_push(list, frame);
    }
    rb_hash_aset(hash, key_frames, list);
    rb_hash_aset(hash, key_base, UINT2NUM(event->count));
    rb_hash_aset(hash, key_reason, word(reasons[event->reason <= RAT_SNAPSHOT_REPAIR ? event->reason : 0]));
}

static void set_end(VALUE hash, uint32_t reason)
{
    static const char *const reasons[] = {"unknown", "stop", "context_died", "fork"};
    rb_hash_aset(hash, key_reason, word(reasons[reason <= RAT_END_FORK ? reason : 0]));
}

static void set_note(VALUE hash, const struct rat_replay_event *event)
{
    static const char *const notes[] = {"unknown", "public_path", "clock_fallback", "depth_limit", "blind"};
    rb_hash_aset(hash, key_note, word(notes[event->reason <= RAT_NOTE_BLIND ? event->reason : 0]));
    rb_hash_aset(hash, key_value, UINT2NUM(event->value));
}

static void set_gate(VALUE hash, struct rb_rat_reading *reading, const struct rat_replay_event *event)
{
    static const char *const states[] = {"unknown", "closed", "open", "count"};
    set_frame(hash, reading, event->frame);
    rb_hash_aset(hash, word("state"), word(states[event->reason <= RAT_GATE_COUNT ? event->reason : 0]));
    rb_hash_aset(hash, word("share"), DBL2NUM(event->value / 1e6));
    rb_hash_aset(hash, word("site"), ULL2NUM(event->numbers[0]));
    rb_hash_aset(hash, word("left_out"), ULL2NUM(event->numbers[1]));
}

static void set_cost(VALUE hash, const struct rat_replay_event *event)
{
    static const char *const names[RAT_COST_WORDS] = {"hooks_ns", "serializer_ns", "process_ns", "gvl_ns", "events"};
    for (int i = 0; i < RAT_COST_WORDS; i++)
        rb_hash_aset(hash, word(names[i]), ULL2NUM(event->numbers[i]));
}

/* [pid, session id], made once a session. */
static VALUE process_of(struct rb_rat_reading *reading, const struct rat_replay_session *session)
{
    VALUE known = rb_ary_entry(reading->processes, session->index);
    if (!NIL_P(known))
        return known;
    char id[33];
    snprintf(id, sizeof id, "%016llx%016llx", (unsigned long long)session->hi, (unsigned long long)session->lo);
    known = rb_ary_new_from_args(2, session->has_info ? UINT2NUM(session->info.pid) : Qnil, word(id));
    rb_ary_store(reading->processes, session->index, known);
    return known;
}

static VALUE event_hash(struct rb_rat_reading *reading, const struct rat_replay_event *event, const uint32_t *frames)
{
    VALUE hash = rb_hash_new(), process = process_of(reading, event->session);
    rb_hash_aset(hash, key_type, type_of(event->kind));
    rb_hash_aset(hash, key_time, ULL2NUM(event->ns));
    rb_hash_aset(hash, key_lane, UINT2NUM(event->lane));
    rb_hash_aset(hash, key_context, UINT2NUM(event->context));
    rb_hash_aset(hash, key_process, RARRAY_AREF(process, 0));
    rb_hash_aset(hash, key_session, RARRAY_AREF(process, 1));
    switch (event->kind) {
    case RAT_EVENT_CALL:
    case RAT_EVENT_C_CALL:
        set_frame(hash, reading, event->frame);
        break;
    case RAT_EVENT_UNWIND:
        rb_hash_aset(hash, key_count, UINT2NUM(event->count));
        break;
    case RAT_EVENT_SNAPSHOT:
        set_snapshot(hash, reading, event, frames);
        break;
    case RAT_EVENT_END:
        set_end(hash, event->reason);
        break;
    case RAT_EVENT_NOTE:
        set_note(hash, event);
        break;
    case RAT_EVENT_GATE:
        set_gate(hash, reading, event);
        break;
    case RAT_EVENT_COST:
        set_cost(hash, event);
        break;
    default:
        break;
    }
    return hash;
}

void rb_rat_batch_yield(struct rb_rat_batch *batch, struct rb_rat_reading *reading)
{
    const uint32_t *frames = batch->frames;
    for (size_t i = 0; i < batch->count; i++) {
        const struct rat_replay_event *event = &batch->events[i];
        rb_yield(event_hash(reading, event, frames));
        frames += event->frame_count;
    }
    batch->count = batch->frame_count = 0;
}

void rb_rat_batch_free(struct rb_rat_batch *batch)
{
    free(batch->events);
    free(batch->frames);
    *batch = (struct rb_rat_batch){0};
}

void rb_rat_event_init(void)
{
    struct {
        VALUE *key;
        const char *text;
    } keys[] = {
        {&key_type, "type"},     {&key_time, "t"},           {&key_lane, "lane"},     {&key_context, "context"},
        {&key_process, "process"}, {&key_session, "session"}, {&key_owner, "owner"}, {&key_method, "method"},
        {&key_called, "called"}, {&key_kind, "kind"},     {&key_file, "file"},     {&key_line, "line"},
        {&key_count, "count"},   {&key_frames, "frames"}, {&key_base, "base"},     {&key_reason, "reason"},
        {&key_note, "note"},     {&key_value, "value"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        *keys[i].key = word(keys[i].text);
        rb_gc_register_mark_object(*keys[i].key);
    }
}
