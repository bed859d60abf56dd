/* rb_options.h - what a recording is to be like, taken from the Hash that Ratrace::Native.start is given.
 *
 * Memory: all texts are copies, and stay until the next options are taken.
 */
#ifndef RB_RAT_OPTIONS_H
#define RB_RAT_OPTIONS_H

#include "deliver/session.h"
#include "ruby/rb_name.h"

#define RB_RAT_STRINGS 7

struct rb_rat_options {
    struct rat_session_options session;
    struct rb_rat_filter filter;
    char *strings[RB_RAT_STRINGS]; /* behind `session` and `filter.own` */
    rb_event_flag_t events;
    bool no_words; /* by the user's wish */
    bool scoped;   /* only sites (rb_site.h); no hook of the whole process */
    double max_overhead;
    uint64_t canary_ns; /* from one canary to the next */
};

/* Raises for what is no option's value. GVL. */
void rb_rat_options_take(struct rb_rat_options *options, VALUE hash);

#endif
