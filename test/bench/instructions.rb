#!/usr/bin/env ruby
# frozen_string_literal: true

# Instructions per event without a hook, with the empty one and with ratrace, counted by callgrind, hence the same on a
# busy machine as on an idle one. They say nothing of caches: test/bench/hook.rb says what the instructions take.
#
#   test/bench/instructions.rb [--c-calls]

require "optparse"
require_relative "bench"
require_relative "shapes"
$LOAD_PATH.unshift(File.join(Bench::TOP, "lib"))

# One process a variant under callgrind, which is this file again, and the differences of their counts.
class InstructionBench
  PART = 0.02
  VARIANTS = %w[off empty ratrace].freeze

  def initialize(c_calls:)
    @c_calls = c_calls
    @folder = Bench.scratch("instructions")
  end

  def run
    puts "instructions per event, #{@c_calls ? "calls and C calls" : "calls"}"
    Shapes::ALL.each_key do |name|
      counts = VARIANTS.to_h { |variant| [variant, count(name, variant)] }
      off, empty, ratrace = counts.values.map(&:first)
      events = counts.fetch("ratrace").last.to_f
      puts format("  %-8s off %.1f, empty hook +%.1f, ratrace +%.1f more (%d events)", name, off / events,
                  (empty - off) / events, (ratrace - empty) / events, events)
    end
  end

  private

  # Instructions inside EmptyHook.collect, and the events that ratrace recorded there.
  def count(name, variant)
    out = File.join(@folder, "callgrind.#{name}.#{variant}")
    command = ["valgrind", "--tool=callgrind", "--toggle-collect=empty_hook_collect", "--callgrind-out-file=#{out}",
               RbConfig.ruby, __FILE__, "--inside", variant, name, @c_calls.to_s]
    output = IO.popen(command, err: %i[child out], &:read)
    abort "callgrind failed:\n#{output}" unless $?.success?
    [output[/Collected : (\d+)/, 1].to_i, output[/^events (\d+)/, 1].to_i]
  end
end

# In the process that callgrind counts. The first run fills the caches.
module Inside
  def self.run(variant, name, c_calls)
    shape = Shapes::ALL.fetch(name)
    shape.run(InstructionBench::PART)
    send(variant, c_calls == "true") do
      shape.run(InstructionBench::PART)
      GC.disable # a collection would be counted, and empties ratrace's caches
      EmptyHook.collect { shape.run(InstructionBench::PART) }
    end
  end

  def self.off(_c_calls)
    yield
  end

  def self.empty(c_calls)
    EmptyHook.start(c_calls)
    yield
  ensure
    EmptyHook.stop
  end

  def self.ratrace(c_calls)
    # no flip while counting: callgrind takes the serializer for a part of the thread that collects
    Ratrace.start(out_dir: Bench.scratch("counted"), c_calls: c_calls, period: 3600)
    yield
    puts "events #{Ratrace.stats[:events] / 2}" # of two equal runs, and a handful at start
  ensure
    Ratrace.stop
  end
end

if ARGV.first == "--inside"
  require "ratrace"
  Bench.load_empty_hook
  Inside.run(*ARGV.drop(1))
else
  c_calls = false
  OptionParser.new("usage: test/bench/instructions.rb [options]") do |opts|
    opts.on("--c-calls", "C methods, too") { c_calls = true }
  end.parse!(ARGV)
  if system("valgrind", "--version", out: File::NULL)
    Bench.load_empty_hook
    InstructionBench.new(c_calls: c_calls).run
  else
    puts "instructions are left out: valgrind is not installed"
  end
end
