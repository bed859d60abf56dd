# frozen_string_literal: true

# Builds every C file of the layer folders into ratrace/ratrace.so.
#
# From the environment, for our own builds:
#   RATRACE_SANITIZE=address|thread   with that sanitizer (address brings undefined along)
#   RATRACE_TEST_POINTS=1             with the named test points; as with a sanitizer, invariants abort
#   RATRACE_WERROR=1                  warnings are errors

require "mkmf"

LAYERS = %w[base record wire model export deliver ruby].freeze
# Ruby leaves frames by __builtin_longjmp, which ASan does not see, so it must not poison the stack.
SANITIZERS = {
  "address" => "-fsanitize=address,undefined --param asan-stack=0",
  "thread" => "-fsanitize=thread"
}.freeze

def require_library(lib, header, package)
  return if have_header(header) && (lib.nil? || have_library(lib))

  abort "ratrace needs #{lib ? "lib#{lib}" : header}: install the Debian package #{package} (or your system's like of it)"
end

def generate_protobuf
  return if File.exist?(File.join($srcdir, "wire/trace.pb-c.c"))

  script = File.expand_path("../../bin/proto", $srcdir)
  return if find_executable("protoc") && find_executable("protoc-gen-c") && system(script)

  abort "ratrace needs protoc with its C plugin to build from git: " \
        "install the Debian packages protobuf-compiler and protobuf-c-compiler"
end

abort "ratrace runs on Linux only" unless RUBY_PLATFORM.include?("linux")
abort "ratrace needs CRuby" unless RUBY_ENGINE == "ruby"

require_library "protobuf-c", "protobuf-c/protobuf-c.h", "libprotobuf-c-dev"
require_library "zstd", "zstd.h", "libzstd-dev"
require_library nil, "xxhash.h", "libxxhash-dev"
have_library("pthread")
have_library("dl", "dlopen") # its own library before glibc 2.34
unless have_header("curl/curl.h") # opened at run time; only its types are needed here
  warn "ratrace is built without libcurl and cannot ship recordings: " \
       "install the Debian package libcurl4-openssl-dev (or your system's like of it) and build again"
end
generate_protobuf

# What depends on the Ruby version. The Ruby-free layers may use none of these: they ask the compiler.
have_func("rb_class_attached_object", "ruby.h")
have_func("rb_ext_ractor_safe", "ruby.h")
have_func("rb_internal_thread_add_event_hook", %w[ruby.h ruby/thread.h])
have_func("rb_internal_thread_specific_key_create", %w[ruby.h ruby/thread.h])
have_func("rb_postponed_job_preregister", %w[ruby.h ruby/debug.h])
have_func("rb_profile_thread_frames", %w[ruby.h ruby/debug.h])

# mkmf looks into its own folder only, so it is told where the layers are. Objects lie in one folder: basenames are unique.
sources = Dir.glob("{#{LAYERS.join(",")}}/*.c", base: $srcdir).sort
$srcs = ["ratrace.c", *sources.map { |path| File.basename(path) }]
$VPATH.concat(LAYERS.map { |layer| "$(srcdir)/#{layer}" })
$headers.concat(Dir.glob("{#{LAYERS.join(",")}}/*.h", base: $srcdir).sort.map { |path| "$(srcdir)/#{path}" })

$INCFLAGS << " -I$(srcdir)"
$defs << %(-DRAT_BUILT_FOR='"#{RUBY_VERSION} #{RUBY_PLATFORM}"')
$defs << "-D_GNU_SOURCE" # for all files alike, whether or not they see ruby.h first
$CFLAGS << " -O2" unless $CFLAGS.match?(/-O[123s]\b/)
$CFLAGS << " -std=gnu11 -fvisibility=hidden -fno-strict-aliasing -fno-plt -pthread"
# Ruby's own flags, where a distribution left them in, suggest attributes that raising functions then must carry.
$warnflags = "#{$warnflags} -Wno-suggest-attribute=noreturn -Wno-suggest-attribute=format"

sanitize = ENV.fetch("RATRACE_SANITIZE", "")
unless sanitize.empty?
  flags = SANITIZERS.fetch(sanitize) { abort "RATRACE_SANITIZE is #{SANITIZERS.keys.join(" or ")}, not #{sanitize}" }
  $CFLAGS << " -O1 -g -fno-omit-frame-pointer #{flags} -fno-sanitize-recover=all"
  $DLDFLAGS << " #{flags}"
end
$defs << "-DRAT_TEST=1" if ENV["RATRACE_TEST_POINTS"] == "1"
$defs << "-DRAT_ABORT_ON_BROKEN=1" if ENV["RATRACE_TEST_POINTS"] == "1" || !sanitize.empty?
$warnflags << " -Werror" if ENV["RATRACE_WERROR"] == "1"

create_makefile("ratrace/ratrace")
