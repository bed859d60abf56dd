# frozen_string_literal: true

require "etc"
require "fileutils"
require "rbconfig"

# What the benchmarks share: where things are, the empty hook, and statistics that survive a noisy machine. A benchmark
# prints ratios of things measured side by side, round by round, and how far the rounds were apart; it never fails
# because of a time.
module Bench
  TOP = File.expand_path("../..", __dir__)
  SCRATCH = File.join(TOP, "tmp/bench", "#{RUBY_PLATFORM}-#{RUBY_VERSION}")

  module_function

  # Build test/bench/empty_hook for this Ruby unless that was done, and load it.
  def load_empty_hook
    source = File.join(__dir__, "empty_hook")
    made = File.join(SCRATCH, "empty_hook", "empty_hook.so")
    build_empty_hook(source, File.dirname(made)) unless FileUtils.uptodate?(made, Dir[File.join(source, "*")])
    require made
  end

  def build_empty_hook(source, folder)
    FileUtils.mkdir_p(folder)
    command = "#{RbConfig.ruby} #{source}/extconf.rb && make"
    output = IO.popen(command, chdir: folder, err: %i[child out], &:read)
    abort "cannot build the empty hook:\n#{output}" unless $?.success?
  end

  # An empty folder under tmp/ for a recording; gone when the process ends.
  def scratch(name)
    folder = File.join(SCRATCH, "#{name}-#{Process.pid}")
    owner = Process.pid
    FileUtils.mkdir_p(folder)
    at_exit { FileUtils.rm_rf(folder) if Process.pid == owner }
    folder
  end

  def clear(folder)
    FileUtils.rm_f(Dir[File.join(folder, "*")])
  end

  # CPU time of the calling thread: another process on the machine disturbs it less than the wall.
  def cpu_ns_of
    from = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
    yield
    Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - from
  end

  def wall
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def quantile(values, part)
    sorted = values.sort
    at = part * (sorted.size - 1)
    low = sorted[at.floor]
    low + ((sorted[at.ceil] - low) * (at - at.floor))
  end

  def median(values)
    quantile(values, 0.5)
  end

  # "0.21 (quartiles 0.19..0.24, all 0.12..0.41)"
  def spread(values, format = "%.2f")
    return "nothing measured" if values.empty?

    texts = [0.5, 0.25, 0.75, 0, 1].map { |part| format(format, quantile(values, part)) }
    "#{texts[0]} (quartiles #{texts[1]}..#{texts[2]}, all #{texts[3]}..#{texts[4]})"
  end

  def machine
    cpu = File.foreach("/proc/cpuinfo").grep(/model name/).first.to_s.split(":").last.to_s.strip
    load = File.read("/proc/loadavg").split.first
    "#{RUBY_DESCRIPTION}; #{Etc.nprocessors} × #{cpu}; Linux #{Etc.uname[:release]}; load #{load}"
  end
end
