#!/usr/bin/env ruby
# frozen_string_literal: true

# Does a flush make the recorded thread wait?
#
#   test/bench/pause.rb [--rounds N]
#
# One thread calls an empty method and reads the clock, a million times a round, with a flush every 100 ms and with none,
# in turns. Told are quantiles of the time from reading to reading, their ratios pair by pair, and the sum of the
# longest ones: what a flush held up can be no more than that. (The serializer takes no lock that a Ruby thread waits for;
# what is seen beyond the quantiles is the machine.)

require "optparse"
require_relative "bench"
$LOAD_PATH.unshift(File.join(Bench::TOP, "lib"))
require "ratrace"

# Times between readings of the clock around a call.
class PauseBench
  CALLS = 1_000_000
  PERIODS = { flushed: 0.1, quiet: 3600 }.freeze
  QUANTILES = { "p50" => 0.5, "p99" => 0.99, "p99.9" => 0.999, "p99.99" => 0.9999 }.freeze

  def initialize(rounds)
    @rounds = rounds
    @folder = Bench.scratch("pause")
    @found = Hash.new { |hash, name| hash[name] = [] }
    @flips = 0
  end

  def run
    sample # warm
    @rounds.times do |round|
      PERIODS.keys.rotate(round).each { |name| @found[name] << measure(name) }
    end
    print_all
  end

  private

  def leaf = nil

  def measure(name)
    Ratrace.start(out_dir: @folder, slot_size: 8 << 20, period: PERIODS.fetch(name), include: __FILE__)
    times = sample
    @flips += Ratrace.stats[:flips] if name == :flushed
    Ratrace.stop
    times.sort!
    QUANTILES.transform_values { |part| times[(times.size * part).to_i] }.merge("longest" => times.last)
  end

  def sample
    times = Array.new(CALLS, 0)
    before = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    index = 0
    while index < CALLS
      leaf
      now = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
      times[index] = now - before
      before = now
      index += 1
    end
    times
  end

  def print_all
    puts "pause: #{@rounds} rounds of #{CALLS} calls, #{@flips} flushes; target p99.9 at most 2.00 times"
    [*QUANTILES.keys, "longest"].each do |what|
      flushed, quiet = %i[flushed quiet].map { |name| @found[name].map { |times| times[what] } }
      ratios = flushed.zip(quiet).map { |a, b| a.fdiv(b) }.sort
      puts format("  %-8s %8d ns with flushes, %8d ns without, ratio %.2f (all %.2f..%.2f)", what,
                  flushed.sort[@rounds / 2], quiet.sort[@rounds / 2], ratios[@rounds / 2], ratios.first, ratios.last)
    end
  end
end

rounds = 15
OptionParser.new { |parser| parser.on("--rounds N", Integer) { |n| rounds = n } }.parse!
puts Bench.machine
PauseBench.new(rounds).run
