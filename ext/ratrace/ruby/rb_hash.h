/* rb_hash.h - a Hash with symbols for keys: how options come from Ruby, and how answers go there. */
#ifndef RB_RAT_HASH_H
#define RB_RAT_HASH_H

#include <ruby.h>

static inline VALUE rb_rat_get(VALUE hash, const char *key)
{
    return rb_hash_aref(hash, ID2SYM(rb_intern(key)));
}

static inline void rb_rat_set(VALUE hash, const char *key, VALUE value)
{
    rb_hash_aset(hash, ID2SYM(rb_intern(key)), value);
}

#endif
