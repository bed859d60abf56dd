# frozen_string_literal: true

require_relative "lib/ratrace/version"

Gem::Specification.new do |spec|
  spec.name = "ratrace"
  spec.version = Ratrace::VERSION
  spec.authors = ["ratrace contributors"]
  spec.summary = "Always-on recorder for Ruby services"
  spec.description = "Records method calls, sampled stacks, allocations, GC, GVL waits and hand-written scopes " \
                     "on one clock into one stream that survives a crash and accounts for every event it lost."
  spec.license = "MIT"
  spec.required_ruby_version = ">= 3.1"

  # The generated C code is named here although git ignores it: a gem's user needs no protoc.
  generated = %w[c h].map { |ext| "ext/ratrace/wire/trace.pb-c.#{ext}" }
  spec.files = Dir.chdir(__dir__) do
    generated | Dir["{ext,lib}/**/*.{c,h,rb,css}", "proto/**/*.proto", "sig/**/*.rbs", "exe/*", "*.{md,txt}"]
  end
  spec.bindir = "exe"
  spec.executables = ["ratrace"]
  spec.extensions = ["ext/ratrace/extconf.rb"]
  spec.metadata["rubygems_mfa_required"] = "true"
end
