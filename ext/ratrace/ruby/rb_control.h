/* rb_control.h - Ratrace::Native.control_*: the control socket of this process, for the thread that answers it. */
#ifndef RB_RAT_CONTROL_H
#define RB_RAT_CONTROL_H

#include <ruby.h>

void rb_rat_control_init(VALUE native);

#endif
