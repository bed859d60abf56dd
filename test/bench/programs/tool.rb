# frozen_string_literal: true

# Loaded with ruby's -r before a program that programs.rb measures: starts the tool that BENCH_TOOL names, and when the
# program ends writes what it took into the file BENCH_RESULT: seconds of wall and of the main thread's CPU. Starting and
# stopping the tool is in neither; programs.rb sees it in the time of the process.

# One starter a tool; each returns what stops it.
module BenchTool
  module_function

  def none
    -> {}
  end

  def empty
    require_relative "../bench"
    Bench.load_empty_hook
    EmptyHook.start
    -> { EmptyHook.stop }
  end

  def stackprof
    require "stackprof"
    StackProf.start(mode: :wall, interval: 1000, raw: true)
    lambda do
      StackProf.stop
      File.binwrite("#{ENV.fetch("BENCH_RESULT")}.stackprof", Marshal.dump(StackProf.results))
    end
  end

  def ruby_prof
    require "ruby-prof"
    profile = RubyProf::Profile.new
    profile.start
    -> { profile.stop }
  end

  def vernier
    require "vernier"
    Vernier.start_profile(out: "#{ENV.fetch("BENCH_RESULT")}.vernier.json", mode: :wall, interval: 1000)
    -> { Vernier.stop_profile }
  end

  def ratrace
    require "ratrace"
    Ratrace.start(out_dir: "#{ENV.fetch("BENCH_RESULT")}.ratrace")
    lambda do
      File.write("#{ENV.fetch("BENCH_RESULT")}.stats", Marshal.dump(Ratrace.stats))
      Ratrace.stop
    end
  end

  def ratrace_c_calls
    require "ratrace"
    Ratrace.start(out_dir: "#{ENV.fetch("BENCH_RESULT")}.ratrace", c_calls: true)
    -> { Ratrace.stop }
  end

  def now
    [Process::CLOCK_MONOTONIC, Process::CLOCK_THREAD_CPUTIME_ID].map { |clock| Process.clock_gettime(clock) }
  end

  def run
    stop = public_send(ENV.fetch("BENCH_TOOL"))
    from = now
    owner = Process.pid
    at_exit do # the first one, hence the last to run; after it only the tool's own
      next unless Process.pid == owner

      taken = now.zip(from).map { |to, start| to - start }
      stop.call
      File.write(ENV.fetch("BENCH_RESULT"), taken.join(" "))
    end
  end
end

BenchTool.run
