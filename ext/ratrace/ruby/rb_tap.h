/* rb_tap.h - Native.live_files and the Native.tap_* functions: running processes seen from outside, for Ruby.
 *
 * Memory:  a TypedData object; tap_close frees what is native at once.
 * Threads: one at a time; the GVL is given up while a process is looked at.
 */
#ifndef RB_RAT_TAP_H
#define RB_RAT_TAP_H

#include <ruby.h>

void rb_rat_tap_init(VALUE native);

#endif
