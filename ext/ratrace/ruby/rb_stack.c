#include "ruby/rb_stack.h"

#include <string.h>

#include "ruby/rb_name.h"

#define FRAMES_FIRST 1024
#define FRAMES_MAX (1 << 22)

int rb_rat_stack_count(struct rb_rat_agent *agent)
{
    for (;;) {
        int count = agent->frames_capacity > 0 ? rb_profile_frames(0, agent->frames_capacity, agent->frames, NULL) : 0;
        if (agent->frames_capacity > 0 && count < agent->frames_capacity)
            return count;
        int capacity = agent->frames_capacity > 0 ? agent->frames_capacity * 2 : FRAMES_FIRST;
        VALUE *frames = capacity <= FRAMES_MAX ? realloc(agent->frames, (size_t)capacity * sizeof *frames) : NULL;
        if (frames == NULL)
            return -1;
        agent->frames = frames;
        agent->frames_capacity = capacity;
    }
}

bool rb_rat_stack_at_least(struct rb_rat_agent *agent, int depth)
{
    int count = rb_rat_stack_count(agent);
    return count < 0 || count >= depth;
}

void rb_rat_stack_take_base(struct rb_rat_agent *agent, int skip, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    rat_recorder_begin_base(recorder);
    int count = rb_rat_stack_count(agent);
    if (count <= skip)
        return;
    /* Naming allocates, and a GC may move what only native memory refers to: hold the frames in an array, hidden from
     * ObjectSpace; and ask for them again, because making it allocates, too. */
    VALUE held = rb_obj_hide(rb_ary_new_capa(count));
    count = rb_rat_stack_count(agent);
    for (int i = skip; i < count; i++)
        rb_ary_push(held, agent->frames[i]);
    long base = RARRAY_LEN(held);
    uint32_t *ids = malloc((size_t)base * sizeof *ids);
    if (ids == NULL)
        return;
    for (long i = 0; i < base; i++)
        ids[i] = rb_rat_name_base(agent->names, RARRAY_AREF(held, base - 1 - i));
    for (long i = 0; i < base; i++)
        if (!rat_recorder_push_base(recorder, ids[i])) {
            rat_lane_drop(&recorder->lane, RAT_DROP_OUT_OF_MEMORY, now);
            break;
        }
    free(ids);
    RB_GC_GUARD(held);
}

void rb_rat_stack_trim_base(struct rb_rat_agent *agent, int present, uint64_t now)
{
    struct rat_recorder *recorder = &agent->hot->recorder;
    int base = (int)recorder->context->base;
    if (present < 0)
        present = 0;
    if (base > present)
        rat_recorder_unwind(recorder, (uint32_t)(base - present), now);
}

/* ---------------------------------------------------------------- verify */

static bool same_name(struct rat_dict *dict, rat_name_id id, VALUE string)
{
    size_t length;
    const char *text = rat_dict_name_text(dict, id, &length);
    return text != NULL && RB_TYPE_P(string, T_STRING) && (size_t)RSTRING_LEN(string) == length &&
        memcmp(text, RSTRING_PTR(string), length) == 0;
}

/* A Ruby method is where it is defined; a C function is what it is called. */
static bool same_frame(struct rat_dict *dict, const struct rat_entry *entry, VALUE frame)
{
    const struct rat_frame_entry *known = rat_dict_frame_entry(dict, entry->id);
    if (known == NULL || entry->id == RAT_FRAME_FULL)
        return true; /* hidden or folded: nothing to compare with */
    if (entry->kind == RAT_FRAME_C_INSTANCE)
        return same_name(dict, known->method, rb_profile_frame_method_name(frame));
    VALUE line = rb_profile_frame_first_lineno(frame);
    return FIXNUM_P(line) && (uint32_t)FIX2INT(line) == known->line &&
        same_name(dict, known->file, rb_profile_frame_path(frame));
}

/* A line of a backtrace: "file:3:in `rescue in dive'", or with other quotes. */
struct traced_line {
    const char *label; /* behind the quote; "" if there is none */
    size_t label_length;
    int number;
};

static struct traced_line read_line(VALUE line)
{
    struct traced_line out = {.label = "", .number = 0};
    if (!RB_TYPE_P(line, T_STRING))
        return out;
    const char *text = RSTRING_PTR(line), *end = text + RSTRING_LEN(line);
    const char *in = memmem(text, (size_t)(end - text), ":in ", 4);
    if (in == NULL || end - in < 5)
        return out;
    out.label = in + 5;
    out.label_length = (size_t)(end - out.label);
    for (int tens = 1; in > text && in[-1] >= '0' && in[-1] <= '9' && tens < 1000000000; tens *= 10)
        out.number += (*--in - '0') * tens;
    return out;
}

static bool is_labelled_body(const struct traced_line *line)
{
    static const char *const bodies[] = {"block ", "rescue in ", "ensure in "};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if (line->label_length > strlen(bodies[i]) && memcmp(line->label, bodies[i], strlen(bodies[i])) == 0)
            return true;
    return false;
}

static bool ends_with_name(const struct traced_line *line, VALUE name)
{
    size_t length = RB_TYPE_P(name, T_STRING) ? (size_t)RSTRING_LEN(name) : 0;
    if (length == 0 || line->label_length < length + 1) /* and a quote */
        return false;
    const char *at = line->label + line->label_length - 1 - length;
    return memcmp(at, RSTRING_PTR(name), length) == 0 && (at == line->label || at[-1] == '#' || at[-1] == '.');
}

/* A block written in C, as sort_by gives to each: rb_profile_frames shows it as its method, backtraces leave it out. */
static bool is_block_in_c(VALUE frame, const struct traced_line *line)
{
    return NIL_P(rb_profile_frame_path(frame)) && !ends_with_name(line, rb_profile_frame_method_name(frame));
}

/* Without frame words nothing but a backtrace tells a method from a body of it: by the label, or (from Ruby 3.4 on, where
 * a rescue or ensure body's line has its method's label and the method below it has no line) by a frame whose line is
 * missing. Allocates; only after frames were lost. A define_method body looks like a block, but rb_profile_frames has no
 * method name for it. */
static void blank_bodies(struct rb_rat_agent *agent)
{
    VALUE lines = rb_make_backtrace();
    int count = rb_rat_stack_count(agent); /* after it: a GC may have moved frames */
    int *numbers = count > 0 ? calloc((size_t)count, sizeof *numbers) : NULL;
    if (numbers == NULL || !RB_TYPE_P(lines, T_ARRAY)) {
        free(numbers);
        return;
    }
    rb_profile_frames(0, count, agent->frames, numbers);
    for (int i = 0, at = 0; i < count && at < RARRAY_LEN(lines); i++, at++) {
        struct traced_line line = read_line(RARRAY_AREF(lines, at));
        if (is_block_in_c(agent->frames[i], &line)) {
            at--; /* this line is the next frame's */
            continue;
        }
        struct traced_line below = read_line(at + 1 < RARRAY_LEN(lines) ? RARRAY_AREF(lines, at + 1) : Qnil);
        bool hides_next = i + 1 < count && agent->frames[i + 1] == agent->frames[i] && numbers[i + 1] != below.number;
        if (!hides_next && !is_labelled_body(&line))
            continue;
        if (!NIL_P(rb_profile_frame_method_name(agent->frames[i])))
            agent->frames[i] = Qfalse;
        i += hides_next;
    }
    free(numbers);
    RB_GC_GUARD(lines);
}

uint32_t rb_rat_stack_verify(struct rat_recorder *recorder, void *owner)
{
    struct rb_rat_agent *agent = owner;
    uint32_t above = rat_recorder_above_base(recorder);
    if (above == 0)
        return 0;
    int count = rb_rat_stack_count(agent);
    if (count < 0)
        return 0;
    if (!agent->words && recorder->context->doubt != 0)
        blank_bodies(agent);
    struct rat_entry *keep = recorder->top - above + 1, *end = recorder->top;
    /* The entry that returns is taken off by who found it, so it stays; a C function's frame may be popped already. */
    const struct rat_entry *returning = agent->calling ? NULL : end;
    if (end->kind == RAT_FRAME_C_INSTANCE && returning != NULL)
        end--;
    int real = count - 1 - (int)recorder->context->base;
    uint32_t removed = 0;
    for (struct rat_entry *at = keep; at <= recorder->top; at++) {
        int found = -1;
        if (at <= end) {
            for (int i = real; i >= 0 && found < 0; i--)
                if (agent->frames[i] != Qfalse && same_frame(recorder->dict, at, agent->frames[i]))
                    found = i;
            if (found < 0 && at != returning) {
                removed++;
                continue;
            }
            real = found >= 0 ? found - 1 : real;
        }
        *keep++ = *at;
    }
    recorder->top = keep - 1;
    return removed;
}
