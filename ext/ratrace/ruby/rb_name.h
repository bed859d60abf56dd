/* rb_name.h - from a method that the VM runs to a frame id of the dictionary, without calling anything a user wrote.
 *
 * Two tables in front of the dictionary:
 *   cache   method entry (or C owner and name) → id. One load, one compare a call. Addresses of method entries are
 *           reused after a GC, so every GC empties it (rb_agent.c).
 *   keys    (defined class, method id, called id) → id, file, line. Its classes are pinned, so an address means one
 *           class. Only named classes and modules and their singleton classes are kept; anonymous classes and
 *           singletons of ordinary objects are interned by their text each time.
 * A known key whose file or line differ was redefined and gets another id.
 *
 * Everything here may allocate, hence GC, hence empty the cache: call it before a slot is entered, and look at the
 * cache again afterwards.
 */
#ifndef RB_RAT_NAME_H
#define RB_RAT_NAME_H

#include <ruby.h>
#include <ruby/debug.h>

#include "record/dictionary.h"
#include "ruby/rb_agent.h"

/* Globs over file names: a method whose file matches no include (if there are any), or matches an exclude, is kept on
 * the shadow only. C methods have no file and always pass. */
struct rb_rat_filter {
    char *own; /* where ratrace's own Ruby files lie ("…/lib/ratrace"): never told; may be NULL */
    char **include, **exclude;
    size_t include_count, exclude_count;
};

struct rb_rat_names *rb_rat_names_new(void);
/* The object that keeps classes alive, for whoever has `names` to mark. */
VALUE rb_rat_names_keeper(const struct rb_rat_names *names);
/* A new session: ids of the old one are void. `filter`'s strings stay the caller's. */
void rb_rat_names_begin(struct rb_rat_names *names, struct rat_dict *dict, const struct rb_rat_filter *filter);
void rb_rat_names_end(struct rb_rat_names *names);

/* The id of the method this call, return, c_call or c_return event is about, by the public accessors. */
int32_t rb_rat_name_event(struct rb_rat_names *names, rb_trace_arg_t *arg, bool c_event);

/* The id of a C function from the trace argument's own words. */
int32_t rb_rat_name_c(struct rb_rat_names *names, VALUE owner, ID method, ID called);

/* The id of a base frame from what rb_profile_frames returned; RAT_FRAME_HIDDEN for one of ratrace's own. */
uint32_t rb_rat_name_base(struct rb_rat_names *names, VALUE frame);

/* Text of a string, a symbol's or class's name as the dictionary has it; 0 for nil. */
rat_name_id rb_rat_name_string(struct rb_rat_names *names, VALUE string);

struct rat_dict *rb_rat_names_dict(struct rb_rat_names *names);

void rb_rat_name_init(void);

#endif
