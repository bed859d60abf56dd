#include "ruby/rb_options.h"

#include <stdlib.h>
#include <string.h>

#include "ruby/rb_cost.h"
#include "ruby/rb_hash.h"

#define MAX_OVERHEAD 0.02
#define CANARY_NS (UINT64_C(3600) * 1000000000u)

static uint64_t number(VALUE hash, const char *name, uint64_t otherwise)
{
    VALUE value = rb_rat_get(hash, name);
    return NIL_P(value) ? otherwise : NUM2ULL(value);
}

static char *copy_string(VALUE string)
{
    if (NIL_P(string))
        return NULL;
    StringValueCStr(string);
    return strdup(RSTRING_PTR(string));
}

static void free_globs(char **globs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(globs[i]);
    free(globs);
}

static char **copy_globs(VALUE array, size_t *count)
{
    *count = NIL_P(array) ? 0 : (size_t)RARRAY_LEN(array);
    char **globs = calloc(*count + 1, sizeof *globs);
    for (size_t i = 0; globs != NULL && i < *count; i++)
        globs[i] = copy_string(RARRAY_AREF(array, (long)i));
    if (globs == NULL)
        *count = 0;
    return globs;
}

/* An attached Ractor may still look at them: then they stay. */
static void release(struct rb_rat_options *options)
{
    if (rb_rat_agent_others() > 0) {
        options->filter = (struct rb_rat_filter){0};
        memset(options->strings, 0, sizeof options->strings);
        return;
    }
    for (int i = 0; i < RB_RAT_STRINGS; i++) {
        free(options->strings[i]);
        options->strings[i] = NULL;
    }
    free_globs(options->filter.include, options->filter.include_count);
    free_globs(options->filter.exclude, options->filter.exclude_count);
    options->filter = (struct rb_rat_filter){0};
}

/* All checks that may raise come first; the copies are then only made. */
void rb_rat_options_take(struct rb_rat_options *options, VALUE hash)
{
    static const char *const names[RB_RAT_STRINGS] = {
        "out_dir", "live_dir", "service", "ruby", "recorder", "own", "trace"};
    Check_Type(hash, T_HASH);
    for (int i = 0; i < RB_RAT_STRINGS; i++) {
        VALUE text = rb_rat_get(hash, names[i]);
        if (!NIL_P(text))
            StringValueCStr(text);
    }
    static const char *const globs[] = {"include", "exclude"};
    for (int i = 0; i < 2; i++) {
        VALUE array = rb_rat_get(hash, globs[i]);
        if (NIL_P(array))
            continue;
        Check_Type(array, T_ARRAY);
        for (long j = 0; j < RARRAY_LEN(array); j++) {
            VALUE text = RARRAY_AREF(array, j);
            StringValueCStr(text);
        }
    }
    uint64_t slot_bytes = number(hash, "slot_bytes", RAT_SLOT_BYTES_DEFAULT);
    if (slot_bytes < RAT_SLOT_BYTES_MIN || slot_bytes > RAT_SLOT_BYTES_MAX)
        rb_raise(rb_eArgError, "slot_bytes out of range");
    struct rat_session_options taken = {
        .slot_bytes = (uint32_t)slot_bytes,
        .period_ns = number(hash, "period_ns", RAT_PERIOD_NS_DEFAULT),
        .segment_bytes = number(hash, "segment_bytes", RAT_SEGMENT_BYTES_DEFAULT),
        .segment_age_ns = number(hash, "segment_age_ns", RAT_SEGMENT_AGE_NS_DEFAULT),
        .file_mode = (uint32_t)number(hash, "file_mode", 0600),
        .clock = (enum rat_clock_kind)number(hash, "clock", 0),
        .fence = (enum rat_fence_kind)number(hash, "fence", 0),
        .debug = RTEST(rb_rat_get(hash, "debug")),
        .beat = &rb_rat_beat,
    };
    VALUE tags = rb_rat_get(hash, "tags");
    if (!NIL_P(tags)) {
        StringValue(tags);
        if (RSTRING_LEN(tags) > (long)sizeof taken.tags)
            rb_raise(rb_eArgError, "tags too long");
        memcpy(taken.tags, RSTRING_PTR(tags), (size_t)RSTRING_LEN(tags));
    }
    VALUE overhead = rb_rat_get(hash, "max_overhead");
    double max_overhead = NIL_P(overhead) ? MAX_OVERHEAD : NUM2DBL(overhead);
    uint64_t canary_ns = number(hash, "canary_ns", CANARY_NS);
    release(options);
    for (int i = 0; i < RB_RAT_STRINGS; i++)
        options->strings[i] = copy_string(rb_rat_get(hash, names[i]));
    taken.out_dir = options->strings[0];
    if (options->strings[1] == NULL) { /* read now, under the GVL: later another thread may be changing it */
        const char *live_dir = getenv("RATRACE_LIVE_DIR");
        options->strings[1] = strdup(live_dir != NULL ? live_dir : "");
    }
    taken.live_dir = options->strings[1];
    taken.service = options->strings[2] != NULL ? options->strings[2] : "";
    taken.ruby = options->strings[3] != NULL ? options->strings[3] : "";
    taken.recorder = options->strings[4] != NULL ? options->strings[4] : "";
    options->filter.own = options->strings[5];
    taken.trace = options->strings[6];
    options->session = taken;
    options->scoped = taken.trace != NULL;
    options->filter.include = copy_globs(rb_rat_get(hash, "include"), &options->filter.include_count);
    options->filter.exclude = copy_globs(rb_rat_get(hash, "exclude"), &options->filter.exclude_count);
    options->no_words = rb_rat_get(hash, "frame_words") == Qfalse;
    options->max_overhead = max_overhead;
    options->canary_ns = canary_ns;
    options->events = RUBY_EVENT_CALL | RUBY_EVENT_RETURN;
    if (RTEST(rb_rat_get(hash, "c_calls")))
        options->events |= RUBY_EVENT_C_CALL | RUBY_EVENT_C_RETURN;
}
