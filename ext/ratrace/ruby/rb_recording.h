/* rb_recording.h - Ratrace::Native's readers of recordings: replay_events, profile, account.
 *
 * Each reads files without the GVL, piece by piece, and can be interrupted between two pieces. Ruby objects are made
 * between the pieces, under the GVL. Whatever ends a call, its memory is freed before Ruby sees the end.
 */
#ifndef RB_RAT_RECORDING_H
#define RB_RAT_RECORDING_H

#include <ruby.h>

void rb_rat_recording_init(VALUE native);

#endif
