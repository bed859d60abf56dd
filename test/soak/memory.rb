#!/usr/bin/env ruby
# frozen_string_literal: true

# Records a restless program at full rate and fails if it grows.
#
#   test/soak/memory.rb [SECONDS] [--without]
#
# SECONDS (default 600) long, a worker calls methods as fast as it can, and beside that creates threads, fibers that end
# and fibers that are abandoned, classes without a name, methods defined anew under a fixed set of names and lines, and
# garbage. A watcher outside reads its memory and its open files each second and deletes the segments that it publishes.
# After a fifth of the time, the worker's memory must not trend upwards by more than 8 MiB over what remains, and its open
# files must not pile up. --without runs the same program unrecorded, to see what is its own.

require "fileutils"
require "rbconfig"
require "tmpdir"

TOP = File.expand_path("../..", __dir__)

# What is recorded: a process of its own.
class Worker
  NAMES = 100
  LINES = 20
  CALLS = 50_000

  # Methods are defined here.
  class Target; end

  def initialize(seconds, folder, recorded)
    @seconds = seconds
    @folder = folder
    @recorded = recorded
    @turn = 0
  end

  def run
    start if @recorded
    finish = now + @seconds
    turn while now < finish
    stop if @recorded
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def start
    $LOAD_PATH.unshift(File.join(TOP, "lib"))
    require "ratrace"
    Ratrace.start(out_dir: File.join(@folder, "out"))
  end

  def stop
    Ratrace.flush
    File.binwrite(File.join(@folder, "stats"), Marshal.dump(Ratrace.stats))
    Ratrace.stop
  end

  def turn
    @turn += 1
    call_much
    define_methods
    use_nameless_class
    finish_fibers
    abandon_fibers
    run_threads if @turn % 10 == 0
    GC.start if @turn % 100 == 0
  end

  def call_much
    n = CALLS
    while n > 0
      nothing
      n -= 1
    end
  end

  def nothing; end

  # A method of a known name, owner and place has a known id, however often it is defined; one that moved is new.
  def define_methods
    5.times do |i|
      at = @turn * 5 + i
      name = "method_#{at % NAMES}"
      Target.class_eval("def #{name}(x); x; end", "defined.rb", 1 + at / NAMES % LINES)
      Target.new.public_send(name, at)
    end
  end

  def use_nameless_class
    Class.new { def greet = "hello" }.new.greet
    Object.new.tap { |object| def object.own = 1 }.own
  end

  def finish_fibers
    3.times { Fiber.new { nothing }.resume }
  end

  def abandon_fibers
    3.times { Fiber.new { pause }.resume }
  end

  def pause
    Fiber.yield
  end

  def run_threads
    Array.new(4) { |i| Thread.new { 20.times { nothing }; Array.new(100) { i.to_s } } }.each(&:join)
  end
end

# What watches it.
class Watcher
  WARM_UP = 0.2
  GROWTH_KIB = 8 * 1024

  Sample = Struct.new(:second, :resident, :anonymous, :shared, :files, :threads, :disk)

  def initialize(seconds, recorded)
    @seconds = seconds
    @recorded = recorded
    @samples = []
    @failures = []
    @published = 0
  end

  def run
    Dir.mktmpdir("ratrace-soak") do |folder|
      @folder = folder
      status = watch
      @failures << "the worker ended with #{status.inspect}" unless status.success?
      judge
    end
    @failures.each { |failure| puts "FAILED #{failure}" }
    @failures.empty?
  end

  private

  def watch
    mode = @recorded ? "recorded" : "unrecorded"
    # two arenas: how many glibc makes for the threads is not our question
    pid = spawn({ "MALLOC_ARENA_MAX" => "2" }, RbConfig.ruby, __FILE__, "--worker", @seconds.to_s, @folder, mode)
    second = 0
    until Process.wait(pid, Process::WNOHANG)
      sleep 1
      look(pid, second += 1)
    end
    $?
  end

  def look(pid, second)
    status = File.read("/proc/#{pid}/status")
    kib = %w[VmRSS RssAnon RssShmem].map { |name| status[/^#{name}:\s+(\d+)/, 1] }
    return if kib.first.nil? # it has ended and waits to be collected

    @samples << Sample.new(second, *kib.map(&:to_i), Dir.children("/proc/#{pid}/fd").size, status[/^Threads:\s+(\d+)/, 1].to_i,
                           delete_published)
  rescue Errno::ENOENT, Errno::ESRCH
    nil
  end

  # Bytes that lay in the folder.
  def delete_published
    files = Dir[File.join(@folder, "out/*")]
    bytes = files.sum { |path| File.size?(path).to_i }
    published = files.grep(/\.ratrace\z/)
    @published += published.size
    FileUtils.rm_f(published)
    bytes
  end

  def judge
    steady = @samples.drop((@samples.size * WARM_UP).ceil)
    steady.pop # the worker may have been ending
    return @failures << "only #{@samples.size} samples" if steady.size < 10

    report(steady)
    growth = slope(steady) * (steady.last.second - steady.first.second)
    puts format("  trend      %+.0f KiB over %d s (at most %d)", growth, steady.last.second - steady.first.second, GROWTH_KIB)
    @failures << format("memory grew by %.0f KiB", growth) if growth > GROWTH_KIB
    judge_files(steady)
    judge_stats if @recorded
  end

  def report(steady)
    puts "soak: #{@seconds} s, #{@recorded ? "recorded" : "unrecorded"}, #{RUBY_DESCRIPTION}; from second #{steady.first.second}:"
    { "resident" => :resident, "anonymous" => :anonymous, "shared" => :shared }.each do |name, member|
      values = steady.map(&member)
      puts "  #{name.ljust(10)} first #{values.first} KiB, last #{values.last}, least #{values.min}, most #{values.max}"
    end
    puts "  files      #{steady.map(&:files).minmax.join("..")}, threads #{steady.map(&:threads).minmax.join("..")}, " \
         "segments deleted #{@published}, most on disk at once #{@samples.map(&:disk).max} bytes"
  end

  # Least squares, KiB a second.
  def slope(samples)
    x = samples.sum(&:second).to_f / samples.size
    y = samples.sum(&:resident).to_f / samples.size
    samples.sum { |s| (s.second - x) * (s.resident - y) } / samples.sum { |s| (s.second - x)**2 }
  end

  # Two more are open while a segment is rotated.
  def judge_files(steady)
    files = steady.map(&:files)
    @failures << "open files went from #{files.first} to #{files.max}" if files.max > files.first + 2
  end

  def judge_stats
    stats = Marshal.load(File.binread(File.join(@folder, "stats")))
    puts format("  recorded   %d events (%.1f M/s), dropped %d, lost %d", stats[:events], stats[:events] / 1e6 / @seconds,
                stats[:dropped], stats[:lost_events])
    puts "  dictionary #{stats[:frames]} frames, #{stats[:names]} names, #{stats[:contexts]} contexts, folded #{stats[:folded]}"
    @failures << "#{stats[:lost_events]} events lost" if stats[:lost_events] > 0
    @failures << "parts were turned off: #{stats.slice(:failure, :disabled_lanes, :audit_failures)}" if off?(stats)
  end

  def off?(stats)
    stats[:failure] || stats[:disabled_lanes] > 0 || stats[:audit_failures] > 0
  end
end

if ARGV.first == "--worker"
  Worker.new(ARGV[1].to_f, ARGV[2], ARGV[3] == "recorded").run
else
  recorded = !ARGV.delete("--without")
  seconds = Integer(ARGV.fetch(0, "600"))
  abort "at least 20 seconds are needed to see a trend" if seconds < 20
  exit Watcher.new(seconds, recorded).run
end
