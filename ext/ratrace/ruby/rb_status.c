#include "ruby/rb_status.h"

void rb_rat_status_raise(enum rat_status status, const char *doing, const char *detail)
{
    VALUE error = rb_path2class("Ratrace::Error");
    const char *text = detail != NULL && *detail != '\0' ? detail : rat_status_text(status);
    rb_raise(error, "cannot %s: %s", doing, text);
}
