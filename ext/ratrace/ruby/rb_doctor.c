#include "ruby/rb_doctor.h"

#include <linux/magic.h>
#include <protobuf-c/protobuf-c.h>
#include <ruby/version.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <zstd.h>

#include "deliver/curl_library.h"
#include "ruby/rb_hash.h"

/* "3.1.2 x86_64-linux-gnu"; the minor version of it counts. */
static const char built_for[] = RAT_BUILT_FOR;

void rb_rat_doctor_check_ruby(void)
{
    int major = 0, minor = 0;
    if (sscanf(built_for, "%d.%d", &major, &minor) == 2 && major == ruby_api_version[0] && minor == ruby_api_version[1])
        return;
    rb_raise(rb_eLoadError, "ratrace was built for Ruby %d.%d, and this is %d.%d; build it here: gem pristine ratrace",
             major, minor, ruby_api_version[0], ruby_api_version[1]);
}

/* libraries: versions, and of those that are loaded on demand why they cannot be had, else nil. */
static VALUE native_libraries(VALUE self)
{
    (void)self;
    char why[256] = "";
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "zstd", rb_str_new_cstr(ZSTD_versionString()));
    rb_rat_set(hash, "protobuf_c", rb_str_new_cstr(protobuf_c_version()));
    rb_rat_set(hash, "curl_missing", rat_curl_load(why, sizeof why) == RAT_OK ? Qnil : rb_str_new_cstr(why));
    rb_rat_set(hash, "crypto_missing", rat_crypto_load(why, sizeof why) == RAT_OK ? Qnil : rb_str_new_cstr(why));
    return hash;
}

/* filesystem(path): of an existing path; free and total bytes, whether it is tmpfs and whether it may be written. */
static VALUE native_filesystem(VALUE self, VALUE path)
{
    (void)self;
    struct statvfs space;
    struct statfs kind;
    StringValueCStr(path);
    if (statvfs(RSTRING_PTR(path), &space) != 0 || statfs(RSTRING_PTR(path), &kind) != 0)
        rb_sys_fail_str(path);
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "free", ULL2NUM((unsigned long long)space.f_bavail * space.f_frsize));
    rb_rat_set(hash, "total", ULL2NUM((unsigned long long)space.f_blocks * space.f_frsize));
    rb_rat_set(hash, "read_only", (space.f_flag & ST_RDONLY) != 0 ? Qtrue : Qfalse);
    rb_rat_set(hash, "tmpfs", kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC ? Qtrue : Qfalse);
    return hash;
}

void rb_rat_doctor_init(VALUE native)
{
    rb_define_const(native, "BUILT_FOR", rb_obj_freeze(rb_str_new_cstr(built_for)));
    rb_define_module_function(native, "libraries", native_libraries, 0);
    rb_define_module_function(native, "filesystem", native_filesystem, 1);
}
