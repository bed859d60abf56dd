#!/usr/bin/env ruby
# frozen_string_literal: true

# What ratrace's hook costs above an empty one, as a part of what the empty one costs above none:
#
#     (ratrace - empty) / (empty - off)
#
#   test/bench/hook.rb [--rounds N] [--c-calls] [--public] [--all] [--fence KIND]
#
# One process; each round measures all variants in an order that turns, so that a drift of the machine meets all of
# them alike, and the ratio is taken round by round. There are two kinds of off. Once a process has had a hook, its
# instructions stay in traced form, which is slow by itself: "off" is that, in the same process. "untraced" never had
# one: a forked helper that measures between the others. The empty hook is measured twice, and the noise floor is what
# the same formula says of the two.
#
# --public   without frame words, as on a Ruby whose frames ratrace does not know (a process decides once)
# --c-calls  C methods, too
# --all      all four combinations, each in a process of its own

require "optparse"
require_relative "bench"
require_relative "shapes"
$LOAD_PATH.unshift(File.join(Bench::TOP, "lib"))

# Runs shapes in a process that never has a hook.
class UntracedHelper
  def initialize
    requests, @requests = IO.pipe
    @answers, answers = IO.pipe
    @pid = fork do
      @requests.close
      requests.each_line { |name| answers.puts(Bench.cpu_ns_of { Shapes::ALL.fetch(name.chomp).run }) }
      exit!(0)
    end
    requests.close
    answers.close
  end

  def time(name)
    @requests.puts(name)
    @answers.gets.to_i
  end

  def close
    @requests.close
    Process.wait(@pid)
  end
end

# Measures the shapes with one setting of ratrace and prints the table.
class HookBench
  TARGETS = { "words" => 0.30, "public" => 0.75 }.freeze
  VARIANTS = %i[untraced off empty ratrace again].freeze

  def initialize(rounds:, c_calls:)
    @rounds = rounds
    @c_calls = c_calls
    @folder = Bench.scratch("hook")
    @dropped = 0
  end

  def run
    Shapes::ALL.each_value(&:run) # inline caches, memory
    @helper = UntracedHelper.new
    events = Shapes::ALL.transform_values { |shape| count_events(shape) }
    times = measure
    @helper.close
    puts title
    Shapes::ALL.each_key { |name| print_shape(name, times.fetch(name), events.fetch(name)) }
    puts "  dropped #{@dropped}"
  end

  private

  def title
    "hook: #{@path} frame path, #{@fence}, #{@c_calls ? "calls and C calls" : "calls"}, #{@rounds} rounds; " \
      "target #{format("%.2f", TARGETS.fetch(@path))} of the empty hook"
  end

  def measure
    times = Shapes::ALL.transform_values { VARIANTS.to_h { |variant| [variant, []] } }
    @rounds.times do |round|
      Shapes::ALL.each_key do |name|
        VARIANTS.rotate(round).each { |variant| times[name][variant] << send(variant, name).to_f }
      end
    end
    times
  end

  def untraced(name)
    @helper.time(name)
  end

  def off(name)
    Bench.cpu_ns_of { Shapes::ALL.fetch(name).run }
  end

  def empty(name)
    EmptyHook.start(@c_calls)
    off(name)
  ensure
    EmptyHook.stop
  end
  alias again empty

  def ratrace(name)
    with_ratrace { off(name) }
  end

  def with_ratrace
    Ratrace.start(out_dir: @folder, c_calls: @c_calls)
    yield
  ensure
    stats = Ratrace.stats
    @path, @fence = stats.values_at(:frame_path, :fence)
    @dropped += stats[:dropped]
    Ratrace.stop
    Bench.clear(@folder)
  end

  # Without what starting and stopping record.
  def count_events(shape)
    with_ratrace do
      before = Ratrace.stats[:events]
      shape.run
      Ratrace.stats[:events] - before
    end
  end

  def print_shape(name, times, events)
    rounds = times.values.transpose
    against_off = rounds.map { |_, off, *hooks| ratio(off, *hooks) }
    against_untraced = rounds.map { |untraced, _, *hooks| ratio(untraced, *hooks) }
    floor = rounds.map { |_, off, empty, _, again| (again - empty) / (empty - off) }
    per_event = times.map { |variant, all| format("%s %.1f", variant, Bench.median(all) / events) }
    puts "  #{name.ljust(8)} against off       #{Bench.spread(against_off)}"
    puts "           against untraced  #{Bench.spread(against_untraced)}"
    puts "           noise floor      #{Bench.spread(floor, "%+.2f")}"
    puts "           ns per event: #{per_event.first(4).join(", ")} (#{events} events)"
  end

  def ratio(base, empty, ratrace, again)
    empty = (empty + again) / 2
    (ratrace - empty) / (empty - base)
  end
end

# Each setting needs a process: the frame path is decided once, and hooks leave traces behind.
module HookCommand
  SETTINGS = [[], %w[--c-calls], %w[--public], %w[--public --c-calls]].freeze

  def self.run(argv)
    options = { rounds: 31 }
    parser = OptionParser.new("usage: test/bench/hook.rb [options]") do |opts|
      opts.on("--rounds N", Integer, "default 31") { |n| options[:rounds] = n }
      opts.on("--c-calls", "record C methods, too") { options[:c_calls] = true }
      opts.on("--public", "without frame words") { options[:public] = true }
      opts.on("--fence KIND", %w[seq_cst membarrier], "the lane's fence") { |kind| ENV["RATRACE_FENCE"] = kind }
      opts.on("--all", "all settings") { options[:all] = true }
    end
    parser.parse!(argv)
    options[:all] ? run_all(options) : run_one(options)
  end

  def self.run_all(options)
    SETTINGS.each do |setting|
      system(RbConfig.ruby, __FILE__, "--rounds", options[:rounds].to_s, *setting) || abort("hook.rb #{setting} failed")
    end
  end

  def self.run_one(options)
    ENV["RATRACE_FRAME_WORDS"] = "0" if options[:public]
    require "ratrace"
    Bench.load_empty_hook
    puts Bench.machine
    HookBench.new(rounds: options[:rounds], c_calls: options.fetch(:c_calls, false)).run
  end
end

HookCommand.run(ARGV)
