/* rb_status.h - the one place where a status becomes an exception. Under the GVL; call it last: it does not return. */
#ifndef RB_RAT_STATUS_H
#define RB_RAT_STATUS_H

#include <ruby.h>

#include "base/status.h"

/* Raise Ratrace::Error: "cannot <doing>: <text>", with `detail` (may be NULL or "") in place of the text. */
NORETURN(void rb_rat_status_raise(enum rat_status status, const char *doing, const char *detail));

#endif
