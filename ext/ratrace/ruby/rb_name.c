#include "ruby/rb_name.h"

#include <ruby/encoding.h>
#include <ruby/version.h>
#include <fnmatch.h>
#include <string.h>

#include "record/event.h"
#include "record/recorder.h"
#include "ruby/rb_class.h"

#define KEYS_FIRST 1024u
#define KEYS_MAX (1u << 18)

struct key {
    VALUE owner; /* pinned */
    ID method, called;
    int32_t id;
    uint32_t line;
    rat_name_id file;
};

/* Never freed. A Ruby object (below) pins the owners. */
struct rb_rat_names {
    struct rat_dict *dict;
    struct rb_rat_filter filter; /* a copy: the next start may come while a Ractor still records */
    struct key *keys; /* open addressing; id 0 = empty */
    uint32_t mask, used;
    VALUE keeper;
};

/* ---------------------------------------------------------------- the keeper of owners */

static void keeper_mark(void *data)
{
    const struct rb_rat_names *names = data;
    for (uint32_t i = 0; names->keys != NULL && i <= names->mask; i++)
        if (names->keys[i].id != 0)
            rb_gc_mark(names->keys[i].owner);
}

static size_t keeper_memsize(const void *data)
{
    const struct rb_rat_names *names = data;
    return sizeof *names + (names->keys != NULL ? (names->mask + (size_t)1) * sizeof *names->keys : 0);
}

/* Write-barrier protected (RB_OBJ_WRITTEN at each insertion), so 50,000 owners cost a minor GC nothing. */
static const rb_data_type_t keeper_type = {
    .wrap_struct_name = "ratrace/names",
    .function = {.dmark = keeper_mark, .dfree = NULL, .dsize = keeper_memsize},
    .flags = RUBY_TYPED_WB_PROTECTED,
};

struct rb_rat_names *rb_rat_names_new(void)
{
    struct rb_rat_names *names = calloc(1, sizeof *names);
    if (names == NULL)
        return NULL;
    names->keeper = TypedData_Wrap_Struct(rb_cObject, &keeper_type, names);
    return names;
}

VALUE rb_rat_names_keeper(const struct rb_rat_names *names)
{
    return names->keeper;
}

void rb_rat_names_end(struct rb_rat_names *names)
{
    free(names->keys);
    names->keys = NULL;
    names->mask = names->used = 0;
    names->dict = NULL;
    names->filter = (struct rb_rat_filter){0};
}

void rb_rat_names_begin(struct rb_rat_names *names, struct rat_dict *dict, const struct rb_rat_filter *filter)
{
    rb_rat_names_end(names);
    names->dict = dict;
    names->filter = *filter;
}

struct rat_dict *rb_rat_names_dict(struct rb_rat_names *names)
{
    return names->dict;
}

/* ---------------------------------------------------------------- keys */

static uint32_t key_hash(VALUE owner, ID method, ID called)
{
    uint64_t h = (uint64_t)owner * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ (uint64_t)method << 1) * UINT64_C(0xC2B2AE3D27D4EB4F);
    h = (h ^ (uint64_t)called) * UINT64_C(0x165667B19E3779F9);
    return (uint32_t)(h >> 32);
}

static struct key *key_slot(struct key *keys, uint32_t mask, VALUE owner, ID method, ID called)
{
    uint32_t at = key_hash(owner, method, called) & mask;
    while (keys[at].id != 0 &&
           !(keys[at].owner == owner && keys[at].method == method && keys[at].called == called))
        at = (at + 1) & mask;
    return &keys[at];
}

static bool keys_grow(struct rb_rat_names *names)
{
    uint32_t size = names->keys != NULL ? (names->mask + 1) * 2 : KEYS_FIRST;
    if (size > KEYS_MAX)
        return false;
    struct key *keys = calloc(size, sizeof *keys);
    if (keys == NULL)
        return false;
    for (uint32_t i = 0; names->keys != NULL && i <= names->mask; i++) {
        const struct key *old = &names->keys[i];
        if (old->id != 0)
            *key_slot(keys, size - 1, old->owner, old->method, old->called) = *old;
    }
    free(names->keys);
    names->keys = keys;
    names->mask = size - 1;
    return true;
}

static struct key *key_find(struct rb_rat_names *names, VALUE owner, ID method, ID called)
{
    if (names->keys == NULL)
        return NULL;
    struct key *key = key_slot(names->keys, names->mask, owner, method, called);
    return key->id != 0 ? key : NULL;
}

static void key_add(struct rb_rat_names *names, struct key key)
{
    if (names->keys == NULL || names->used >= names->mask / 2)
        if (!keys_grow(names) && (names->keys == NULL || names->used >= names->mask - 1))
            return; /* interned by text again next time */
    struct key *slot = key_slot(names->keys, names->mask, key.owner, key.method, key.called);
    names->used += slot->id == 0;
    *slot = key;
    RB_OBJ_WRITTEN(names->keeper, Qundef, key.owner);
}

/* ---------------------------------------------------------------- text */

rat_name_id rb_rat_name_string(struct rb_rat_names *names, VALUE string)
{
    if (!RB_TYPE_P(string, T_STRING))
        return 0;
    int range = rb_enc_str_coderange(string);
    bool utf8 = range == ENC_CODERANGE_7BIT ||
        (range == ENC_CODERANGE_VALID && rb_enc_get(string) == rb_utf8_encoding());
    rat_name_id id = rat_dict_name(names->dict, RSTRING_PTR(string), (size_t)RSTRING_LEN(string), utf8);
    RB_GC_GUARD(string);
    return id;
}

static rat_name_id id_name(struct rb_rat_names *names, ID id)
{
    return id != 0 ? rb_rat_name_string(names, rb_id2str(id)) : 0;
}

/* ---------------------------------------------------------------- filter */

/* "**" + "/" may also stand for nothing, as in Ruby's globs; '*' crosses '/' otherwise. */
static bool glob_matches(const char *glob, const char *path)
{
    if (fnmatch(glob, path, 0) == 0)
        return true;
    const char *deep = strstr(glob, "**/");
    if (deep == NULL)
        return false;
    char flat[4096];
    size_t before = (size_t)(deep - glob), after = strlen(deep + 3);
    if (before + after >= sizeof flat)
        return false;
    memcpy(flat, glob, before);
    memcpy(flat + before, deep + 3, after + 1);
    return fnmatch(flat, path, 0) == 0;
}

static bool any_matches(char *const *globs, size_t count, const char *path)
{
    for (size_t i = 0; i < count; i++)
        if (glob_matches(globs[i], path))
            return true;
    return false;
}

static bool is_own(const struct rb_rat_filter *filter, const char *path, size_t length)
{
    size_t own = filter->own != NULL ? strlen(filter->own) : 0;
    if (own == 0 || length <= own || memcmp(path, filter->own, own) != 0)
        return false;
    return path[own] == '/' || (length == own + 3 && memcmp(path + own, ".rb", 3) == 0);
}

static bool is_hidden(const struct rb_rat_names *names, VALUE path)
{
    const struct rb_rat_filter *filter = &names->filter;
    if (!RB_TYPE_P(path, T_STRING))
        return false;
    if (is_own(filter, RSTRING_PTR(path), (size_t)RSTRING_LEN(path)))
        return true;
    if (filter->include_count + filter->exclude_count == 0)
        return false;
    char text[4096];
    size_t length = (size_t)RSTRING_LEN(path);
    if (length >= sizeof text)
        length = sizeof text - 1;
    memcpy(text, RSTRING_PTR(path), length);
    text[length] = '\0';
    if (any_matches(filter->exclude, filter->exclude_count, text))
        return true;
    return filter->include_count > 0 && !any_matches(filter->include, filter->include_count, text);
}

/* ---------------------------------------------------------------- methods */

static bool same_text(struct rb_rat_names *names, rat_name_id id, VALUE string)
{
    size_t length;
    const char *text = rat_dict_name_text(names->dict, id, &length);
    if (!RB_TYPE_P(string, T_STRING))
        return id == 0;
    return text != NULL && length == (size_t)RSTRING_LEN(string) && memcmp(text, RSTRING_PTR(string), length) == 0;
}

static int32_t intern(struct rb_rat_names *names, VALUE owner, ID method, ID called, VALUE path, uint32_t line,
                      bool is_c)
{
    struct key *known = key_find(names, owner, method, called);
    if (known != NULL && known->line == line && same_text(names, known->file, path))
        return known->id;

    struct rb_rat_class_name name = rb_rat_class_name(owner);
    struct rat_frame_entry frame = {
        .owner = rb_rat_name_string(names, name.text),
        .method = id_name(names, method),
        .called = called != method ? id_name(names, called) : 0,
        .file = rb_rat_name_string(names, path),
        .line = line,
        .kind = is_c ? (name.singleton ? RAT_FRAME_C_SINGLETON : RAT_FRAME_C_INSTANCE)
                     : (name.singleton ? RAT_FRAME_SINGLETON : RAT_FRAME_INSTANCE),
    };
    int32_t id = RB_RAT_ID_HIDDEN;
    if (!is_hidden(names, path)) {
        bool complete = frame.owner != 0 && frame.method != 0 && (frame.file != 0 || NIL_P(path));
        id = (int32_t)(complete ? rat_dict_frame(names->dict, &frame) : rat_dict_fold(names->dict));
    }
    if (name.lasting)
        key_add(names, (struct key){owner, method, called, id, line, frame.file});
    return id;
}

static ID symbol_id(VALUE symbol)
{
    return SYMBOL_P(symbol) ? SYM2ID(symbol) : 0;
}

int32_t rb_rat_name_event(struct rb_rat_names *names, rb_trace_arg_t *arg, bool is_c)
{
    VALUE owner = rb_tracearg_defined_class(arg);
    ID method = symbol_id(rb_tracearg_method_id(arg));
    ID called = symbol_id(rb_tracearg_callee_id(arg));
    if (is_c)
        return intern(names, owner, method, called, Qnil, 0, true);
    VALUE line = rb_tracearg_lineno(arg);
    return intern(names, owner, method, called, rb_tracearg_path(arg), FIXNUM_P(line) ? (uint32_t)FIX2INT(line) : 0,
                  false);
}

int32_t rb_rat_name_c(struct rb_rat_names *names, VALUE owner, ID method, ID called)
{
    return intern(names, owner, method, called, Qnil, 0, true);
}

uint32_t rb_rat_name_base(struct rb_rat_names *names, VALUE profile_frame)
{
    VALUE path = rb_profile_frame_path(profile_frame);
    if (RB_TYPE_P(path, T_STRING) && is_own(&names->filter, RSTRING_PTR(path), (size_t)RSTRING_LEN(path)))
        return RAT_FRAME_HIDDEN;
    VALUE owner = rb_profile_frame_classpath(profile_frame);
    VALUE method = rb_profile_frame_method_name(profile_frame);
    VALUE line = rb_profile_frame_first_lineno(profile_frame);
    if (NIL_P(method))
        method = rb_profile_frame_base_label(profile_frame);
    if (NIL_P(method))
        method = rb_profile_frame_label(profile_frame);
    if (!NIL_P(owner))
        owner = rb_rat_class_strip(owner);
    struct rat_frame_entry frame = {
        .owner = rb_rat_name_string(names, owner),
        .method = rb_rat_name_string(names, method),
        .file = rb_rat_name_string(names, path),
        .line = FIXNUM_P(line) ? (uint32_t)FIX2INT(line) : 0,
        .kind = RAT_FRAME_BASE,
    };
    return rat_dict_frame(names->dict, &frame);
}

void rb_rat_name_init(void)
{
    rb_rat_class_init();
}
