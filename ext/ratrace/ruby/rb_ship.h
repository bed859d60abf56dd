/* rb_ship.h - Ratrace::Native.exporter_*: the shipper of this process (deliver/shipper.h). */
#ifndef RB_RAT_SHIP_H
#define RB_RAT_SHIP_H

#include <ruby.h>

void rb_rat_ship_init(VALUE native);

/* In a forked child that has begun to record: start a shipper of its own, if the parent had one. Under the GVL. */
void rb_rat_ship_in_child(void);

#endif
