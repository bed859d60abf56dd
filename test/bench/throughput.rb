#!/usr/bin/env ruby
# frozen_string_literal: true

# How much one Ruby thread can record for a while: calls of an empty method as fast as the interpreter makes them.
#
#   test/bench/throughput.rb [--seconds 30] [--slot-size BYTES] [--c-calls]
#
# Prints events a second, drops (there should be none), memory, bytes on disk an event, and what the serializer took
# of its own core. Segments are deleted as they are published, so that a long run needs no disk.

require "optparse"
require_relative "bench"
$LOAD_PATH.unshift(File.join(Bench::TOP, "lib"))
require "ratrace"

# One recording of an endless loop, looked at from inside.
class Throughput
  STEP = 100_000

  def initialize(seconds:, slot_size:, c_calls:)
    @seconds = seconds
    @options = { slot_size: slot_size, c_calls: c_calls, out_dir: Bench.scratch("throughput") }
    @resident = []
  end

  def run
    puts Bench.machine
    Ratrace.start(**@options)
    taken = measure
    Ratrace.flush
    report(Ratrace.stats, **taken)
  ensure
    Ratrace.stop
  end

  private

  def nothing; end

  def step
    n = STEP
    while n > 0
      nothing
      n -= 1
    end
  end

  # Times of this thread, of the process and of the wall over the loop.
  def measure
    from = clocks
    while Bench.wall - from[:wall] < @seconds
      20.times { step }
      look
    end
    clocks.to_h { |clock, now| [clock, now - from[clock]] }
  end

  def clocks
    { wall: Bench.wall, thread: Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID),
      process: Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) }
  end

  # Between two steps, hence now and then.
  def look
    @resident << File.read("/proc/self/status")[/VmRSS:\s+(\d+)/, 1].to_i
    FileUtils.rm_f(Dir[File.join(@options[:out_dir], "*.ratrace")])
  end

  def report(stats, wall:, thread:, process:)
    events = stats[:events]
    puts "throughput: #{events} events in #{format("%.1f s", wall)} with 2 × #{@options[:slot_size] >> 10} KiB"
    puts format("  rate        %.1f M events/s of wall, %.1f M/s of the thread's CPU (%.0f ns an event)", events / wall / 1e6,
                events / thread / 1e6, thread / events * 1e9)
    puts "  dropped     #{stats[:dropped]} #{stats[:drops].reject { |_, n| n.zero? }}, lost #{stats[:lost_events]}"
    puts "  resident    #{@resident.first >> 10} MiB at first, #{@resident.last >> 10} at last, #{@resident.max >> 10} at most"
    puts format("  disk        %.3f bytes an event, %.1f MB/s; encoded %.2f bytes an event", stats[:bytes].to_f / events,
                stats[:bytes] / wall / 1e6, stats[:raw_bytes].to_f / events)
    puts format("  serializer  %.1f ns an event encoding, %.2f ns writing; other threads' CPU %.0f %% of a core",
                stats[:encode_ns].to_f / events, stats[:write_ns].to_f / events, (process - thread) / wall * 100)
    puts "  flips       #{stats[:flips]}, given up #{stats[:giveups]}, segments #{stats[:segments]}"
  end
end

options = { seconds: 30, slot_size: 8 << 20, c_calls: false }
OptionParser.new("usage: test/bench/throughput.rb [options]") do |opts|
  opts.on("--seconds N", Float, "default 30") { |n| options[:seconds] = n }
  opts.on("--slot-size BYTES", Integer, "of each of the two slots; default 8 MiB") { |n| options[:slot_size] = n }
  opts.on("--c-calls", "C methods, too") { options[:c_calls] = true }
end.parse!(ARGV)
Throughput.new(**options).run
