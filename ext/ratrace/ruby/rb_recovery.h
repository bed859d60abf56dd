/* rb_recovery.h - Ratrace::Native.recover: finish what dead processes left in a directory, without the GVL. */
#ifndef RB_RAT_RECOVERY_H
#define RB_RAT_RECOVERY_H

#include <ruby.h>

void rb_rat_recovery_init(VALUE native);

#endif
