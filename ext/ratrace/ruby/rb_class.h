/* rb_class.h - a class's name as a trace shows it, by the VM's own accessors only.
 *
 *   named class or module      Foo::Bar
 *   its singleton class        Foo::Bar, singleton
 *   anonymous                  #<Class>, #<Module>; inside one: #<Class>::Inner
 *   singleton of an object     #<Foo>, singleton
 *   refinement                 #<refinement:String@Patch>
 *
 * No addresses: they would make one name an object. May allocate; never raises but for lack of memory.
 */
#ifndef RB_RAT_CLASS_H
#define RB_RAT_CLASS_H

#include <ruby.h>
#include <stdbool.h>

struct rb_rat_class_name {
    VALUE text;     /* String */
    bool singleton; /* methods of it are called on the thing named */
    bool lasting;   /* a named class or module, or its singleton class: may be pinned */
};

struct rb_rat_class_name rb_rat_class_name(VALUE owner);

/* The object whose singleton class it is. */
VALUE rb_rat_class_attached(VALUE singleton);

/* "#<Class:0x000…>" and the like without the address; the same string where there is none. */
VALUE rb_rat_class_strip(VALUE name);

void rb_rat_class_init(void);

#endif
