#!/usr/bin/env ruby
# frozen_string_literal: true

# What scoped tracing does to code that is not traced: with 50 methods traced, the time of other code against its time in
# a process without ratrace.
#
#   test/bench/scope.rb [--rounds N]     ratios, round by round; never fails because of a time
#   test/bench/scope.rb --instructions   the same counted by callgrind; fails above 1.02
#
# Two forked helpers, one of which records. Each round runs a shape in both, in turn, so that a drift of the machine meets
# both alike. "noise" is the same of two helpers that do not record.

require "optparse"
require_relative "bench"
require_relative "shapes"
$LOAD_PATH.unshift(File.join(Bench::TOP, "lib"))

# What is traced: it runs between the measurements, and not in them.
class Traced
  METHODS = 50
  METHODS.times { |number| class_eval("def traced_#{number} = #{number}", __FILE__, __LINE__) }

  def self.run
    traced = new
    METHODS.times { |number| traced.public_send(:"traced_#{number}") }
  end

  def self.start(folder)
    require "ratrace"
    Ratrace.start(out_dir: folder, trace: { methods: "Traced#*" }, period: 3600)
    sites = Ratrace.stats[:trace][:sites]
    abort "#{sites} methods are traced, not #{METHODS}" unless sites == METHODS
  end
end

# A process that runs shapes when asked, with ratrace or without.
class Helper
  def initialize(folder)
    requests, @requests = IO.pipe
    @answers, answers = IO.pipe
    @pid = fork do
      @requests.close
      serve(requests, answers, folder)
      exit!(0)
    end
    requests.close
    answers.close
  end

  def time(name)
    @requests.puts(name)
    @answers.gets.to_f
  end

  def close
    @requests.close
    Process.wait(@pid)
  end

  private

  def serve(requests, answers, folder)
    Traced.start(folder) if folder
    requests.each_line do |name|
      Traced.run
      answers.puts(Bench.cpu_ns_of { Shapes::ALL.fetch(name.chomp).run })
    end
    Ratrace.stop if folder
  end
end

class ScopeBench
  LIMIT = 1.02
  PART = 0.02

  def initialize(rounds:)
    @rounds = rounds
    @folder = Bench.scratch("scope")
  end

  def run
    Shapes::ALL.each_value(&:run) # inline caches, memory
    helpers = { plain: Helper.new(nil), traced: Helper.new(@folder), again: Helper.new(nil) }
    puts "scope: #{Traced::METHODS} methods traced, code that is not, #{@rounds} rounds; target #{LIMIT}"
    Shapes::ALL.each_key { |name| measure(name, helpers) }
    helpers.each_value(&:close)
  end

  def measure(name, helpers)
    times = Hash.new { |all, variant| all[variant] = [] }
    @rounds.times { |round| helpers.keys.rotate(round).each { |variant| times[variant] << helpers[variant].time(name) } }
    puts "  #{name.ljust(8)} traced / plain  #{ratios(times, :traced)}"
    puts "           noise           #{ratios(times, :again)}"
  end

  def ratios(times, variant)
    Bench.spread(times[variant].zip(times[:plain]).map { |one, plain| one / plain }, "%.3f")
  end

  def count
    worst = Shapes::ALL.keys.map do |name|
      plain, traced = %w[plain traced].map { |variant| instructions(name, variant) }
      puts format("scope: %-8s %d instructions, %d with %d other methods traced: %.4f (limit %.2f)", name, plain, traced,
                  Traced::METHODS, traced.fdiv(plain), LIMIT)
      traced.fdiv(plain)
    end.max
    exit(worst <= LIMIT)
  end

  # Inside EmptyHook.collect.
  def instructions(name, variant)
    out = File.join(@folder, "callgrind.#{name}.#{variant}")
    command = ["valgrind", "--tool=callgrind", "--toggle-collect=empty_hook_collect", "--callgrind-out-file=#{out}",
               RbConfig.ruby, __FILE__, "--inside", variant, name]
    output = IO.popen(command, err: %i[child out], &:read)
    abort "callgrind failed:\n#{output}" unless $?.success?
    Integer(output[/Collected : (\d+)/, 1])
  end

  # In the process that callgrind counts.
  def self.inside(variant, name)
    shape = Shapes::ALL.fetch(name)
    Traced.start(Bench.scratch("scope")) if variant == "traced"
    Traced.run
    shape.run(PART)
    GC.disable
    EmptyHook.collect { shape.run(PART) }
    Ratrace.stop if variant == "traced"
  end
end

if ARGV.first == "--inside"
  Bench.load_empty_hook
  ScopeBench.inside(*ARGV.drop(1))
else
  options = { rounds: 31 }
  counting = false
  OptionParser.new("usage: test/bench/scope.rb [options]") do |opts|
    opts.on("--rounds N", Integer, "default 31") { |n| options[:rounds] = n }
    opts.on("--instructions", "count with callgrind") { counting = true }
  end.parse!(ARGV)
  if !counting
    puts Bench.machine
    ScopeBench.new(**options).run
  elsif system("valgrind", "--version", out: File::NULL)
    Bench.load_empty_hook
    ScopeBench.new(**options).count
  else
    puts "scope: instructions are left out: valgrind is not installed"
  end
end
