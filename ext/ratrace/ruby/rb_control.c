#include "ruby/rb_control.h"

#include <ruby/thread.h>
#include <string.h>

#include "deliver/control.h"
#include "deliver/outlet.h"
#include "ruby/rb_status.h"

/* One a process. Used by one Ruby thread, which gives the GVL up while it waits or writes. */
static struct rat_control control = {.fd = -1, .client = {.fd = -1}};

struct opening {
    const char *dir;
    enum rat_status status;
    char why[1400];
};

/* The disk may be slow. */
static void *open_nogvl(void *data)
{
    struct opening *opening = data;
    char real[RAT_OUT_DIR_MAX];
    opening->status = rat_outlet_prepare_dir(opening->dir, real, opening->why, sizeof opening->why);
    if (opening->status == RAT_OK)
        opening->status = rat_control_open(&control, real, opening->why, sizeof opening->why);
    return data;
}

/* control_open(dir): the socket's path. The directory is made: a process that does not record has none yet. */
static VALUE native_control_open(VALUE self, VALUE dir)
{
    (void)self;
    StringValueCStr(dir);
    dir = rb_str_new_frozen(dir);
    struct opening opening = {.dir = RSTRING_PTR(dir)};
    rat_control_abandon(&control);
    rb_thread_call_without_gvl(open_nogvl, &opening, NULL, NULL);
    RB_GC_GUARD(dir);
    if (opening.status != RAT_OK)
        rb_raise(rb_path2class("Ratrace::Error"), "%s", opening.why);
    return rb_str_new_cstr(control.path);
}

struct waiting {
    int timeout_ms;
    char request[RAT_CONTROL_REQUEST_MAX];
    enum rat_status status;
};

static void *wait_nogvl(void *data)
{
    struct waiting *waiting = data;
    waiting->status = rat_control_wait(&control, waiting->timeout_ms, waiting->request);
    return NULL;
}

/* control_wait(ms): a request, nil for none yet, false when the socket is gone. */
static VALUE native_control_wait(VALUE self, VALUE timeout_ms)
{
    (void)self;
    struct waiting waiting = {.timeout_ms = NUM2INT(timeout_ms), .status = RAT_END};
    rb_thread_call_without_gvl(wait_nogvl, &waiting, RUBY_UBF_IO, NULL);
    if (waiting.status == RAT_OK)
        return rb_str_new_cstr(waiting.request);
    return waiting.status == RAT_IO ? Qfalse : Qnil;
}

struct reply {
    const char *bytes;
    size_t length;
};

static void *reply_nogvl(void *data)
{
    const struct reply *reply = data;
    rat_control_reply(&control, reply->bytes, reply->length);
    return NULL;
}

static VALUE native_control_reply(VALUE self, VALUE text)
{
    (void)self;
    StringValue(text);
    text = rb_str_new_frozen(text);
    struct reply reply = {RSTRING_PTR(text), (size_t)RSTRING_LEN(text)};
    rb_thread_call_without_gvl(reply_nogvl, &reply, RUBY_UBF_IO, NULL);
    RB_GC_GUARD(text);
    return Qnil;
}

static VALUE native_control_close(VALUE self)
{
    (void)self;
    rat_control_close(&control);
    return Qnil;
}

static VALUE native_control_abandon(VALUE self)
{
    (void)self;
    rat_control_abandon(&control);
    return Qnil;
}

void rb_rat_control_init(VALUE native)
{
    rb_define_module_function(native, "control_open", native_control_open, 1);
    rb_define_module_function(native, "control_wait", native_control_wait, 1);
    rb_define_module_function(native, "control_reply", native_control_reply, 1);
    rb_define_module_function(native, "control_close", native_control_close, 0);
    rb_define_module_function(native, "control_abandon", native_control_abandon, 0);
}
