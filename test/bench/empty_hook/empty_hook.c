/* empty_hook.c - what the VM itself asks for calling a raw event hook, with nothing in the hook.
 *
 * Installed with the flags ratrace uses, so that the difference of the two is ratrace's own.
 */
#include <ruby.h>
#include <ruby/debug.h>

static void empty_hook(VALUE data, const rb_trace_arg_t *arg)
{
    (void)data, (void)arg;
}

/* EmptyHook.start(c_calls = false) */
static VALUE start(int argc, VALUE *argv, VALUE self)
{
    (void)self;
    rb_event_flag_t events = RUBY_EVENT_CALL | RUBY_EVENT_RETURN;
    if (argc > 0 && RTEST(argv[0]))
        events |= RUBY_EVENT_C_CALL | RUBY_EVENT_C_RETURN;
    rb_add_event_hook2((rb_event_hook_func_t)(void *)empty_hook, events, Qnil,
                       RUBY_EVENT_HOOK_FLAG_SAFE | RUBY_EVENT_HOOK_FLAG_RAW_ARG);
    return Qnil;
}

static VALUE stop(VALUE self)
{
    (void)self;
    return INT2NUM(rb_remove_event_hook((rb_event_hook_func_t)(void *)empty_hook));
}

/* EmptyHook.collect { }: what test/bench/instructions has callgrind count. Not static, not inlined: found by its name. */
__attribute__((noinline)) VALUE empty_hook_collect(VALUE self)
{
    (void)self;
    return rb_yield(Qnil);
}

void Init_empty_hook(void)
{
    VALUE module = rb_define_module("EmptyHook");
    rb_define_module_function(module, "start", start, -1);
    rb_define_module_function(module, "stop", stop, 0);
    rb_define_module_function(module, "collect", empty_hook_collect, 0);
}
