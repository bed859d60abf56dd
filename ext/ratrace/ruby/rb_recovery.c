#include "ruby/rb_recovery.h"

#include <ruby/thread.h>
#include <stdlib.h>
#include <string.h>

#include "deliver/recovery.h"
#include "ruby/rb_hash.h"
#include "ruby/rb_status.h"

#define LINES_MAX 256

struct recovering {
    char *out_dir, *live_dir;
    enum rat_status status;
    struct rat_recovery result;
    char *lines[LINES_MAX];
    int line_count;
};

static void keep_line(void *user, const char *line)
{
    struct recovering *recovering = user;
    if (recovering->line_count < LINES_MAX)
        recovering->lines[recovering->line_count++] = strdup(line);
}

static void *recover_nogvl(void *data)
{
    struct recovering *recovering = data;
    recovering->status =
        rat_recover(recovering->out_dir, recovering->live_dir, keep_line, recovering, &recovering->result);
    return NULL;
}

/* Native.recover(out_dir, live_dir = nil): what was done, as a Hash; Ratrace::Error where there is no such directory. */
static VALUE native_recover(int argc, VALUE *argv, VALUE self)
{
    (void)self;
    VALUE out_dir, live_dir;
    rb_scan_args(argc, argv, "11", &out_dir, &live_dir);
    StringValueCStr(out_dir);
    if (!NIL_P(live_dir))
        StringValueCStr(live_dir);
    struct recovering recovering = {
        .out_dir = strdup(RSTRING_PTR(out_dir)),
        .live_dir = NIL_P(live_dir) ? NULL : strdup(RSTRING_PTR(live_dir)),
    };
    rb_nogvl(recover_nogvl, &recovering, NULL, NULL, 0);
    free(recovering.out_dir);
    free(recovering.live_dir);
    VALUE lines = rb_ary_new();
    for (int i = 0; i < recovering.line_count; i++) {
        if (recovering.lines[i] != NULL)
            rb_ary_push(lines, rb_utf8_str_new_cstr(recovering.lines[i]));
        free(recovering.lines[i]);
    }
    if (recovering.status == RAT_NOT_FOUND)
        rb_rat_status_raise(recovering.status, "recover", "no such directory");
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "status", rb_str_new_cstr(rat_status_text(recovering.status)));
    rb_rat_set(hash, "ok", recovering.status == RAT_OK ? Qtrue : Qfalse);
    rb_rat_set(hash, "segments", UINT2NUM(recovering.result.segments));
    rb_rat_set(hash, "alive", UINT2NUM(recovering.result.alive));
    rb_rat_set(hash, "failed", UINT2NUM(recovering.result.failed));
    rb_rat_set(hash, "unplaced", UINT2NUM(recovering.result.unplaced));
    rb_rat_set(hash, "chunks", ULL2NUM(recovering.result.chunks));
    rb_rat_set(hash, "events", ULL2NUM(recovering.result.events));
    rb_rat_set(hash, "in_flight", ULL2NUM(recovering.result.in_flight));
    rb_rat_set(hash, "cut_bytes", ULL2NUM(recovering.result.cut_bytes));
    rb_rat_set(hash, "power_lost", ULL2NUM(recovering.result.power_lost));
    rb_rat_set(hash, "lines", lines);
    return hash;
}

void rb_rat_recovery_init(VALUE native)
{
    rb_define_module_function(native, "recover", native_recover, -1);
}
