#include "ruby/rb_class.h"

#include <ctype.h>
#include <ruby/encoding.h>
#include <string.h>

static ID id_attached, id_refined_class, id_defined_at;

void rb_rat_class_init(void)
{
    id_attached = rb_intern("__attached__");
    id_refined_class = rb_intern("__refined_class__");
    id_defined_at = rb_intern("__defined_at__");
}

VALUE rb_rat_class_strip(VALUE name)
{
    const char *text = RSTRING_PTR(name);
    long length = RSTRING_LEN(name);
    if (memmem(text, (size_t)length, ":0x", 3) == NULL)
        return name;
    VALUE out = rb_enc_str_new(NULL, length, rb_enc_get(name));
    text = RSTRING_PTR(name);
    char *to = RSTRING_PTR(out);
    for (long i = 0; i < length;) {
        if (i + 3 < length && memcmp(text + i, ":0x", 3) == 0 && isxdigit((unsigned char)text[i + 3])) {
            for (i += 3; i < length && isxdigit((unsigned char)text[i]); i++)
                ;
            continue;
        }
        *to++ = text[i++];
    }
    rb_str_set_len(out, to - RSTRING_PTR(out));
    RB_GC_GUARD(name);
    return out;
}

VALUE rb_rat_class_attached(VALUE singleton)
{
#ifdef HAVE_RB_CLASS_ATTACHED_OBJECT
    return rb_class_attached_object(singleton);
#else
    return rb_ivar_get(singleton, id_attached); /* an internal variable up to 3.1: reading it runs no Ruby */
#endif
}

static VALUE plain_name(VALUE module)
{
    VALUE name = rb_mod_name(module);
    return RB_TYPE_P(name, T_STRING) ? name : Qnil;
}

static struct rb_rat_class_name refinement_name(VALUE refinement)
{
    struct rb_rat_class_name out = {.text = Qnil};
    VALUE refined = rb_ivar_defined(refinement, id_refined_class) ? rb_ivar_get(refinement, id_refined_class) : Qnil;
    VALUE at = rb_ivar_defined(refinement, id_defined_at) ? rb_ivar_get(refinement, id_defined_at) : Qnil;
    if (!RB_TYPE_P(refined, T_CLASS) && !RB_TYPE_P(refined, T_MODULE)) {
        out.text = rb_str_new_cstr("#<Refinement>");
        return out;
    }
    out.text = rb_str_new_cstr("#<refinement:");
    rb_str_append(out.text, rb_rat_class_name(refined).text);
    if (RB_TYPE_P(at, T_CLASS) || RB_TYPE_P(at, T_MODULE)) {
        rb_str_cat_cstr(out.text, "@");
        rb_str_append(out.text, rb_rat_class_name(at).text);
    }
    rb_str_cat_cstr(out.text, ">");
    return out;
}

static bool is_refinement(VALUE module)
{
    /* RBASIC's class, not Ruby's: a refinement cannot have a singleton class in front without being one still */
    return RB_TYPE_P(module, T_MODULE) && rb_obj_class(module) == rb_cRefinement;
}

static struct rb_rat_class_name singleton_name(VALUE singleton)
{
    VALUE object = rb_rat_class_attached(singleton);
    struct rb_rat_class_name out = {.singleton = true};
    if (!RB_SPECIAL_CONST_P(object) && (RB_TYPE_P(object, T_CLASS) || RB_TYPE_P(object, T_MODULE))) {
        struct rb_rat_class_name of = rb_rat_class_name(object);
        out.text = of.text;
        out.lasting = of.lasting;
        if (of.singleton) /* class << (class << Foo; self; end) */
            out.text = rb_str_new_cstr("#<Class>");
        return out;
    }
    out.text = rb_str_new_cstr("#<");
    rb_str_append(out.text, rb_rat_class_name(rb_obj_class(object)).text);
    rb_str_cat_cstr(out.text, ">");
    return out;
}

struct rb_rat_class_name rb_rat_class_name(VALUE owner)
{
    if (RB_SPECIAL_CONST_P(owner) || (!RB_TYPE_P(owner, T_CLASS) && !RB_TYPE_P(owner, T_MODULE) &&
                                      !RB_TYPE_P(owner, T_ICLASS)))
        return (struct rb_rat_class_name){.text = rb_str_new_cstr("(unknown)")};
    if (RB_TYPE_P(owner, T_ICLASS))
        return rb_rat_class_name(RBASIC_CLASS(owner)); /* an included module's stand-in */
    if (RB_TYPE_P(owner, T_CLASS) && RB_FL_TEST_RAW(owner, RUBY_FL_SINGLETON))
        return singleton_name(owner);
    if (is_refinement(owner))
        return refinement_name(owner);
    VALUE name = plain_name(owner);
    if (!NIL_P(name)) {
        VALUE text = rb_rat_class_strip(name);
        return (struct rb_rat_class_name){.text = text, .lasting = text == name};
    }
    return (struct rb_rat_class_name){
        .text = rb_str_new_cstr(RB_TYPE_P(owner, T_CLASS) ? "#<Class>" : "#<Module>"),
    };
}
