#include "ruby/rb_reading.h"

#include <ruby/encoding.h>
#include <ruby/thread.h>
#include <stdlib.h>
#include <string.h>

#include "ruby/rb_hash.h"

#define PIECE 262144 /* events between two looks at `cancelled` */

static void reading_release(struct rb_rat_reading *reading)
{
    rat_profile_free(reading->profile);
    rat_replay_free(reading->replay);
    for (size_t i = 0; i < reading->path_count; i++)
        free(reading->paths[i]);
    free(reading->paths);
    reading->profile = NULL;
    reading->replay = NULL;
    reading->paths = NULL;
    reading->path_count = 0;
}

static void reading_mark(void *data)
{
    struct rb_rat_reading *reading = data;
    rb_gc_mark(reading->names);
    rb_gc_mark(reading->frames);
    rb_gc_mark(reading->processes);
}

static void reading_free(void *data)
{
    reading_release(data);
    xfree(data);
}

static size_t reading_memsize(const void *data)
{
    const struct rb_rat_reading *reading = data;
    size_t used = reading->replay ? rat_replay_allowance(reading->replay)->used : 0;
    return sizeof *reading + used;
}

static const rb_data_type_t reading_type = {
    .wrap_struct_name = "ratrace/reading",
    .function = {.dmark = reading_mark, .dfree = reading_free, .dsize = reading_memsize},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

VALUE rb_rat_reading_new(VALUE paths, VALUE options, struct rb_rat_reading **out)
{
    Check_Type(paths, T_ARRAY);
    Check_Type(options, T_HASH);
    VALUE checked = rb_ary_new();
    for (long i = 0; i < RARRAY_LEN(paths); i++)
        rb_ary_push(checked, rb_get_path(RARRAY_AREF(paths, i)));
    VALUE memory_max = rb_rat_get(options, "memory_max");
    size_t bytes = NIL_P(memory_max) ? 0 : NUM2SIZET(memory_max);

    struct rb_rat_reading *reading;
    VALUE object = TypedData_Make_Struct(0, struct rb_rat_reading, &reading_type, reading);
    reading->names = reading->frames = reading->processes = Qnil;
    reading->names = rb_ary_new();
    reading->frames = rb_ary_new();
    reading->processes = rb_ary_new();
    reading->memory_max = bytes;
    reading->paths = calloc((size_t)RARRAY_LEN(checked) + 1, sizeof *reading->paths);
    for (long i = 0; reading->paths && i < RARRAY_LEN(checked); i++) {
        reading->paths[i] = strdup(RSTRING_PTR(RARRAY_AREF(checked, i)));
        if (!reading->paths[i])
            rb_memerror();
        reading->path_count++;
    }
    if (!reading->paths)
        rb_memerror();
    RB_GC_GUARD(checked);
    *out = reading;
    return object;
}

static void raise_failure(const struct rb_rat_reading *reading)
{
    const char *path = reading->replay ? rat_replay_failed(reading->replay) : NULL;
    size_t limit = reading->memory_max ? reading->memory_max : RAT_REPLAY_MEMORY_DEFAULT;
    VALUE error = rb_path2class("Ratrace::ReadError");
    if (reading->status == RAT_NO_MEMORY || reading->status == RAT_TOO_BIG)
        rb_raise(error, "%s: needs more than %" PRIuSIZE " MiB of memory to read; allow more with memory_max",
                 path ? path : "recording", limit >> 20);
    rb_raise(error, "%s: cannot be read: %s", path ? path : "recording", rat_status_text(reading->status));
}

void rb_rat_reading_begin(struct rb_rat_reading *reading, const struct rat_visitor *visitor)
{
    struct rat_source *sources = calloc(reading->path_count + 1, sizeof *sources);
    if (!sources)
        rb_memerror();
    for (size_t i = 0; i < reading->path_count; i++)
        sources[i].path = reading->paths[i];
    reading->status =
        rat_replay_new(sources, reading->path_count, reading->memory_max, visitor, &reading->replay);
    free(sources);
    if (reading->status != RAT_OK)
        raise_failure(reading);
    if (reading->profile)
        rat_profile_bind(reading->profile, rat_replay_allowance(reading->replay));
}

struct piece {
    struct rb_rat_reading *reading;
    uint64_t events; /* 0 = all */
};

static void *read_nogvl(void *data)
{
    struct piece *piece = data;
    struct rb_rat_reading *reading = piece->reading;
    do {
        reading->status = rat_replay_step(reading->replay, piece->events ? piece->events : PIECE);
    } while (reading->status == RAT_OK && piece->events == 0 &&
             /* relaxed: a hint; the thread that set it waits for the GVL's hand-over, not for this */
             !atomic_load_explicit(&reading->cancelled, memory_order_relaxed));
    return NULL;
}

static void cancel(void *data)
{
    struct piece *piece = data;
    atomic_store_explicit(&piece->reading->cancelled, true, memory_order_relaxed);
}

bool rb_rat_reading_go_on(struct rb_rat_reading *reading, uint64_t events)
{
    struct piece piece = {reading, events};
    do {
        atomic_store_explicit(&reading->cancelled, false, memory_order_relaxed);
        rb_thread_call_without_gvl(read_nogvl, &piece, cancel, &piece);
        rb_thread_check_ints();
    } while (reading->status == RAT_OK && events == 0);
    if (reading->status == RAT_OK)
        return true;
    if (reading->status != RAT_END)
        raise_failure(reading);
    return false;
}

VALUE rb_rat_reading_close(VALUE object)
{
    struct rb_rat_reading *reading = rb_check_typeddata(object, &reading_type);
    reading_release(reading);
    return Qnil;
}

/* ---------------------------------------------------------------- objects */

const char *rb_rat_kind_name(uint32_t kind)
{
    static const char *const names[] = {"unknown",     "instance", "singleton", "c_instance",
                                        "c_singleton", "base",     "special"};
    return names[kind < sizeof names / sizeof *names ? kind : 0];
}

VALUE rb_rat_reading_name(struct rb_rat_reading *reading, uint32_t id)
{
    if (id == 0)
        return Qnil;
    VALUE name = rb_ary_entry(reading->names, id);
    if (!NIL_P(name))
        return name;
    struct rat_catalog_name entry = rat_catalog_name(rat_replay_catalog(reading->replay), id);
    name = rb_enc_str_new((const char *)entry.text, entry.length, rb_utf8_encoding());
    if (!entry.utf8 || rb_enc_str_coderange(name) == ENC_CODERANGE_BROKEN)
        rb_enc_associate(name, rb_ascii8bit_encoding());
    rb_obj_freeze(name);
    rb_ary_store(reading->names, id, name);
    return name;
}

VALUE rb_rat_reading_frame(struct rb_rat_reading *reading, uint32_t id)
{
    if (id == 0)
        return Qnil;
    VALUE frame = rb_ary_entry(reading->frames, id);
    if (!NIL_P(frame))
        return frame;
    struct rat_catalog_frame entry = *rat_catalog_frame(rat_replay_catalog(reading->replay), id);
    frame = rb_hash_new();
    rb_rat_set(frame, "owner", rb_rat_reading_name(reading, entry.owner));
    rb_rat_set(frame, "method", rb_rat_reading_name(reading, entry.method));
    rb_rat_set(frame, "called", rb_rat_reading_name(reading, entry.called));
    rb_rat_set(frame, "kind", ID2SYM(rb_intern(rb_rat_kind_name(entry.kind))));
    rb_rat_set(frame, "file", rb_rat_reading_name(reading, entry.file));
    rb_rat_set(frame, "line", UINT2NUM(entry.line));
    rb_obj_freeze(frame);
    rb_ary_store(reading->frames, id, frame);
    return frame;
}

VALUE rb_rat_reading_rows(struct rb_rat_reading *reading, size_t thread)
{
    const struct rat_profile_flat *rows;
    size_t count;
    uint32_t frames = rat_catalog_frames(rat_replay_catalog(reading->replay));
    if (rat_profile_flatten(reading->profile, frames, thread, &rows, &count) != RAT_OK)
        rb_raise(rb_path2class("Ratrace::ReadError"), "recording: needs more memory to read; allow more with memory_max");
    VALUE list = rb_ary_new_capa((long)count);
    for (size_t i = 0; i < count; i++) {
        VALUE row = rb_hash_new();
        rb_rat_set(row, "frame", rb_rat_reading_frame(reading, rows[i].frame));
        rb_rat_set(row, "calls", ULL2NUM(rows[i].calls));
        rb_rat_set(row, "total_ns", ULL2NUM(rows[i].total_ns));
        rb_rat_set(row, "self_ns", ULL2NUM(rows[i].self_ns));
        rb_rat_set(row, "max_ns", ULL2NUM(rows[i].max_ns));
        rb_ary_push(list, row);
    }
    return list;
}
