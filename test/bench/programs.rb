#!/usr/bin/env ruby
# frozen_string_literal: true

# Whole programs without a tool, with the empty hook, with a sampler, with another call tracer and with ratrace.
#
#   test/bench/programs.rb [--rounds N] [--programs a,b] [--tools a,b] [--files N] [--frames N] [--optcarrot DIR]
#
# Programs: "console", an emulator in plain Ruby (test/bench/programs/console.rb); "rubocop" over its own style cops; and
# "optcarrot", where a checkout of it is given. Tools: none, empty, stackprof (wall, 1 ms, raw), ruby_prof, vernier (wall,
# 1 ms), ratrace, ratrace_c_calls. What is not installed is left out, and said.
#
# Each run is a process. A round runs all tools once, in an order that turns; ratios are taken within a round. Two
# times: "process" is the wall from start to end, with the tool's loading, stopping and writing; "thread" the CPU that
# the program's main thread took, which a busy machine disturbs less. ruby_prof, which takes long, sits out after some rounds.

require "optparse"
require_relative "bench"

# One program under one tool, in a process of its own.
class ProgramRun
  TOOL = File.join(__dir__, "programs/tool.rb")

  Result = Struct.new(:process, :thread, :stats)

  def initialize(program, folder)
    @program = program
    @folder = folder
  end

  def under(tool)
    result = File.join(@folder, "result")
    FileUtils.rm_rf(Dir["#{result}*"])
    log = File.join(@folder, "log")
    from = Bench.wall
    Process.wait(spawn({ "BENCH_TOOL" => tool, "BENCH_RESULT" => result },
                       RbConfig.ruby, "-I", File.join(Bench::TOP, "lib"), "-r", TOOL, *@program, %i[out err] => log))
    process = Bench.wall - from
    abort "#{@program.join(" ")} under #{tool} failed:\n#{File.read(log)}" unless File.exist?(result)
    stats = "#{result}.stats"
    Result.new(process, File.read(result).split.last.to_f, File.exist?(stats) ? Marshal.load(File.binread(stats)) : nil)
  end
end

# Rounds of one program under all tools, and the table.
class ProgramBench
  SLOW_ROUNDS = { "ruby_prof" => 3 }.freeze
  # Slower, faster, and what we aim at.
  QUOTIENTS = [
    ["empty", "none", nil], ["stackprof", "none", nil], ["vernier", "none", nil], ["ruby_prof", "none", nil],
    ["ratrace", "none", nil], ["ratrace", "empty", "<= 1.10"], ["ratrace", "stackprof", "rubocop <= 1.10"],
    ["ratrace", "vernier", nil], ["ruby_prof", "ratrace", ">= 5"], ["ratrace_c_calls", "none", nil]
  ].freeze

  def initialize(name, command, tools:, rounds:)
    @name = name
    @tools = tools
    @rounds = rounds
    @run = ProgramRun.new(command, Bench.scratch(name))
    @results = Hash.new { |hash, tool| hash[tool] = {} }
  end

  def run
    @run.under("none") # files into the page cache
    @rounds.times { |round| round(round) }
    report
  end

  private

  def round(number)
    @tools.rotate(number).each do |tool|
      @results[tool][number] = @run.under(tool) if number < SLOW_ROUNDS.fetch(tool, @rounds)
    end
  end

  def report
    puts "#{@name}: #{@rounds} rounds"
    @tools.each { |tool| puts "  #{tool.ljust(16)} #{times(tool)}" }
    QUOTIENTS.each { |upper, lower, target| quotient(upper, lower, target) if (@tools & [upper, lower]).size == 2 }
    stats = @results["ratrace"].values.last&.stats
    puts "  recorded #{stats[:events]} events, dropped #{stats[:dropped]}, lost #{stats[:lost_events]}" if stats
  end

  def times(tool)
    %i[process thread].map do |time|
      "#{time} #{format("%.2f s", Bench.median(@results[tool].values.map(&time)))}"
    end.join(", ")
  end

  def quotient(upper, lower, target)
    puts "  #{upper} / #{lower}#{"  (target #{target})" if target}"
    %i[process thread].each do |time|
      rounds = @results[upper].keys & @results[lower].keys
      values = rounds.map { |round| @results[upper][round][time] / @results[lower][round][time] }
      puts "    #{time.to_s.ljust(8)} #{Bench.spread(values)}"
    end
  end
end

# The command line.
class ProgramsCommand
  TOOLS = { "none" => nil, "empty" => nil, "stackprof" => "stackprof", "ruby_prof" => "ruby-prof",
            "vernier" => "vernier", "ratrace" => nil, "ratrace_c_calls" => nil }.freeze
  USUAL = TOOLS.keys - %w[ratrace_c_calls]

  def initialize
    @rounds = 9
    @programs = %w[console rubocop optcarrot]
    @tools = USUAL
    @files = 60
    @frames = 60
  end

  def run(argv)
    parser.parse!(argv)
    Bench.load_empty_hook
    puts Bench.machine
    tools = @tools.select { |tool| installed?(tool) }
    @programs.each do |name|
      command = send(name)
      ProgramBench.new(name, command, tools: tools, rounds: @rounds).run if command
    end
  end

  private

  def parser
    OptionParser.new("usage: test/bench/programs.rb [options]") do |opts|
      opts.on("--rounds N", Integer, "default 9") { |n| @rounds = n }
      opts.on("--programs LIST", Array, "console,rubocop,optcarrot") { |list| @programs &= list }
      opts.on("--tools LIST", Array, TOOLS.keys.join(",")) { |list| @tools = TOOLS.keys & list }
      opts.on("--files N", Integer, "that rubocop reads; default 60") { |n| @files = n }
      opts.on("--frames N", Integer, "of the emulators; default 60") { |n| @frames = n }
      opts.on("--optcarrot DIR", "a checkout of github.com/mame/optcarrot") { |dir| @optcarrot = File.expand_path(dir) }
    end
  end

  def installed?(tool)
    gem = TOOLS.fetch(tool)
    return true if gem.nil? || Gem::Specification.find_all_by_name(gem).any?

    puts "#{tool} is left out: the gem #{gem} is not installed"
    false
  end

  def console
    [File.join(__dir__, "programs/console.rb"), @frames.to_s]
  end

  def optcarrot
    return puts("optcarrot is left out: no --optcarrot") unless @optcarrot

    ["-I", File.join(@optcarrot, "lib"), File.join(@optcarrot, "bin/optcarrot"), "-b", "--frames", @frames.to_s,
     File.join(@optcarrot, "examples/Lan_Master.nes")]
  end

  # No cache and no workers: all of it in one process. Ends with 1 because it finds something, which is its work.
  def rubocop
    gem = Gem::Specification.find_all_by_name("rubocop").first
    return puts("rubocop is left out: the gem rubocop is not installed") unless gem

    config = File.join(Bench.scratch("rubocop-config"), "rubocop.yml")
    File.write(config, "AllCops:\n  NewCops: enable\n  SuggestExtensions: false\n")
    files = Dir[File.join(gem.gem_dir, "lib/rubocop/cop/style/*.rb")].sort.first(@files)
    [Gem.bin_path("rubocop", "rubocop"), "--cache", "false", "--no-parallel", "--only", "Layout,Style",
     "--config", config, "--format", "quiet", *files]
  end
end

ProgramsCommand.new.run(ARGV)
