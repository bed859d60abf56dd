# frozen_string_literal: true

require "json"
require "test_helper"
require "support/processes"
require "support/recordings"

# Processes that beget processes while they are recorded. Each child has a session of its own from its first call on,
# and nobody tells an event of another.
class ForkTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  PRELUDE = <<~RUBY
    require "ratrace"
    OUT = ARGV.first
    module Work
      def self.parent = 1
      def self.child = 1
      def self.grandchild = 1
    end
    def wait_well(pid)
      Process.wait(pid)
      $?.success? or abort("child: \#{$?}")
    end
    Ratrace.start(out_dir: OUT, slot_size: 65_536)
    10.times { Work.parent }
  RUBY

  ENDING = <<~RUBY
    10.times { Work.parent }
    Ratrace.stop
  RUBY

  def record_code(code, ending: ENDING, **options)
    run_well(PRELUDE + code + ending, out_dir, **options)
  end

  def recover
    run_process(RbConfig.ruby, EXE, "recover", out_dir).tap { |outcome| assert outcome.success?, outcome.err + outcome.out }
  end

  # Calls of each process, the parent's first: [{ "parent" => 20 }, { "child" => 5 }].
  def calls_by_process
    calls = events_in(out_dir).select { |event| event["type"] == "call" && event["owner"] == "Work" }
    by_session = calls.group_by { |event| event["session"] }
    by_session.values.map { |events| events.map { |event| event["method"] }.tally }.sort_by { |tally| tally.key?("parent") ? 0 : 1 }
  end

  def sessions
    account_of(out_dir)[:sessions]
  end

  def assert_family(*expected)
    assert_equal expected, calls_by_process
    assert_sound(out_dir)
  end

  def test_a_childs_events_are_in_its_own_files_and_the_parents_sums_unchanged
    record_code(<<~RUBY)
      wait_well(fork { 7.times { Work.child } })
    RUBY
    assert_family({ "parent" => 20 }, { "child" => 7 })
    assert_equal 2, segments.size
  end

  def test_a_child_names_its_parent
    out = record_code(<<~RUBY)
      wait_well(fork { Work.child; puts Process.pid })
      puts Process.pid
    RUBY
    child_pid, parent_pid = out.split.map(&:to_i)
    parent = sessions.find { |session| session[:pid] == parent_pid }
    child = sessions.find { |session| session[:pid] == child_pid }

    assert_nil parent[:parent]
    assert_equal parent[:id], child[:parent]
    assert_equal parent_pid, child[:parent_pid]
  end

  def test_a_child_goes_on_with_the_frames_it_was_forked_in
    record_code(<<~RUBY)
      def around = yield
      around { wait_well(fork { Work.child }) }
    RUBY
    child = events_in(out_dir).group_by { |event| event["session"] }.values.find do |events|
      events.any? { |event| event["method"] == "child" }
    end
    first = child.find { |event| event["type"] == "snapshot" }
    assert_includes(first["frames"].select { |frame| frame["base"] }.map { |frame| frame["method"] }, "around")
    assert_sound(out_dir)
  end

  def test_a_child_that_calls_nothing_leaves_no_file
    record_code("wait_well(fork { exit!(true) })\n")
    assert_family({ "parent" => 20 })
    assert_equal 1, segments.size
  end

  def test_a_child_may_fork_again
    record_code(<<~RUBY)
      wait_well(fork do
        3.times { Work.child }
        wait_well(fork { 2.times { Work.grandchild } })
        Work.child
      end)
    RUBY
    assert_family({ "parent" => 20 }, { "child" => 4 }, { "grandchild" => 2 })
    child = sessions.find { |session| sessions.any? { |other| other[:parent] == session[:id] } && session[:parent] }
    assert child, "the grandchild names the child"
  end

  def test_a_child_that_records_nothing_may_fork_again
    record_code("wait_well(fork { wait_well(fork { Work.grandchild }) })\n".gsub("wait_well(fork { Work", "Process.wait(fork { Work"))
    assert_family({ "parent" => 20 }, { "grandchild" => 1 })
  end

  def test_a_double_fork_is_recorded_to_its_end
    record_code(<<~RUBY)
      reader, writer = IO.pipe
      Process.wait(fork do
        fork do
          Work.grandchild
          Ratrace.stop
          writer.write("done")
        end
        exit!(true)
      end)
      writer.close
      reader.read == "done" or abort
    RUBY
    assert_family({ "parent" => 20 }, { "grandchild" => 1 })
  end

  def test_a_fork_in_a_thread_records_that_thread_only
    record_code(<<~RUBY)
      other = Thread.new { Work.parent; Thread.stop }
      Thread.pass until other.stop?
      Thread.new { wait_well(fork { 5.times { Work.child } }) }.join
      other.run
      other.join
    RUBY
    assert_family({ "parent" => 21 }, { "child" => 5 })
  end

  def test_a_fork_in_a_fiber_records_it
    record_code(<<~RUBY)
      Fiber.new { wait_well(fork { 5.times { Work.child } }) }.resume
    RUBY
    assert_family({ "parent" => 20 }, { "child" => 5 })
  end

  def test_threads_and_fibers_of_a_child_are_its_own
    record_code(<<~RUBY)
      wait_well(fork do
        3.times { Thread.new { Work.child }.join }
        3.times { Fiber.new { Work.child }.resume }
      end)
    RUBY
    assert_family({ "parent" => 20 }, { "child" => 6 })
    contexts = events_in(out_dir).select { |event| event["method"] == "child" }.map { |event| event["context"] }
    assert_equal 6, contexts.uniq.size
  end

  def test_a_daemon_is_recorded_and_its_parent_too
    record_code(<<~RUBY, ending: "")
      reader, writer = IO.pipe
      unless fork
        reader.close
        Process.daemon(true, true)
        4.times { Work.child }
        Ratrace.stop
        writer.write("done")
        exit!
      end
      writer.close
      reader.read == "done" or abort
      Process.wait
      10.times { Work.parent }
      Ratrace.stop
    RUBY
    assert_includes calls_by_process, { "child" => 4 }
    assert_includes calls_by_process, { "parent" => 20 }
    assert_sound(out_dir)
  end

  def test_programs_started_by_parent_and_child_are_left_alone
    record_code(<<~RUBY)
      run = -> do
        `true`
        system("true") or abort
        Process.wait(spawn("true"))
        IO.popen("true", &:read)
      end
      run.call
      wait_well(fork { Work.child; run.call })
    RUBY
    assert_family({ "parent" => 20 }, { "child" => 1 })
  end

  def test_a_child_that_becomes_another_program_can_be_recovered
    record_code("Process.wait(fork { 3.times { Work.child }; exec('true') })\n")
    recover
    assert_family({ "parent" => 20 }, { "child" => 3 })
  end

  def test_a_child_that_leaves_by_exit_bang_can_be_recovered
    record_code("Process.wait(fork { 3.times { Work.child }; exit!(true) })\n")
    recover
    assert_family({ "parent" => 20 }, { "child" => 3 })
  end

  def test_a_child_that_is_killed_can_be_recovered
    record_code("Process.wait(fork { 3.times { Work.child }; Process.kill(:KILL, Process.pid) })\n")
    recover
    assert_family({ "parent" => 20 }, { "child" => 3 })
  end

  def test_a_child_may_stop_and_start_again
    record_code(<<~RUBY)
      wait_well(fork do
        Work.child
        Ratrace.stop or abort("no segment")
        Work.child
        Ratrace.start(out_dir: OUT)
        2.times { Work.child }
      end)
    RUBY
    assert_equal [{ "parent" => 20 }, { "child" => 1 }, { "child" => 2 }], calls_by_process.sort_by { |tally| tally.values.sum.then { |sum| sum == 20 ? 0 : sum } }
    assert_sound(out_dir)
  end

  def test_flush_and_stats_in_a_child_are_the_childs
    out = record_code(<<~RUBY)
      require "json"
      wait_well(fork do
        Work.child
        Ratrace.flush or abort("not flushed")
        puts Ratrace.stats.slice(:recording, :lanes, :part).to_json
      end)
      puts Ratrace.stats.slice(:recording, :lanes, :part).to_json
    RUBY
    child, parent = out.lines.map { |line| JSON.parse(line) }
    assert_equal [true, 1], child.values_at("recording", "lanes")
    assert_equal [true, 1], parent.values_at("recording", "lanes")
    refute_equal child["part"], parent["part"]
  end

  # The first of a pid namespace has pid 1, as its parent may have.
  def test_a_child_with_the_pid_of_its_parent_is_another_process
    skip "only root can make a pid namespace" unless Process.uid.zero?
    namespace = <<~RUBY
      require "fiddle"
      UNSHARE = Fiddle::Function.new(Fiddle.dlopen(nil)["unshare"], [Fiddle::TYPE_INT], Fiddle::TYPE_INT)
      def fork_first
        UNSHARE.call(0x2000_0000).zero? or exit!(77)
        fork { yield; $stdout.flush; exit!(0) }
      end
    RUBY
    inner = <<~RUBY
      wait_well(fork_first do
        Ratrace.stats
        5.times { Work.child }
        Ratrace.flush
        Ratrace.stop
        puts Process.pid
      end)
    RUBY
    code = "#{namespace}Process.wait(fork_first { #{PRELUDE}#{inner}#{ENDING} })\nexit!($?.exitstatus || 1)\n"
    outcome = run_code(code, out_dir)
    skip "no pid namespaces here" if outcome.status.exitstatus == 77

    assert_predicate outcome.status, :success?, outcome.err
    assert_equal "1\n", outcome.out
    assert_family({ "parent" => 20 }, { "child" => 5 })
  end

  def test_twenty_children_at_once_leave_twenty_recordings
    record_code(<<~RUBY)
      pids = 20.times.map { fork { 100.times { Work.child } } }
      pids.each { |pid| wait_well(pid) }
    RUBY
    assert_family({ "parent" => 20 }, *([{ "child" => 100 }] * 20))
  end

  def test_a_child_forked_while_others_record_and_flush_is_whole
    record_code(<<~RUBY)
      stop = false
      busy = Thread.new { Ratrace.flush until stop }
      8.times { wait_well(fork { 50.times { Work.child } }) }
      stop = true
      busy.join
    RUBY
    assert_family({ "parent" => 20 }, *([{ "child" => 50 }] * 8))
  end

  # Threads that flush in the parent are not in the child, so its stop does not wait for them.
  def test_a_child_forked_while_others_flush_may_stop_what_it_starts
    record_code(<<~RUBY)
      Ratrace.stop
      Ratrace.start(out_dir: OUT, trace: { methods: "Work.child" })
      4.times { Thread.new { loop { Ratrace.flush } } }
      10.times do
        sleep 0.01
        wait_well(fork do
          Ratrace.stop
          Ratrace.start(out_dir: OUT, trace: { methods: "Work.child" })
          Work.child
          Ratrace.stop
        end)
      end
    RUBY
    assert_family({ "parent" => 10 }, *([{ "child" => 1 }] * 10))
  end

  # The stop waits for the flush, and that for the disk. What the child inherits is the count of who flushes.
  def test_a_child_forked_while_its_parent_stops_may_stop_what_it_starts
    slow = File.join(out_dir, "slow")
    code = PRELUDE + <<~RUBY
      slow, entered = ARGV.last(2)
      File.write(slow, "")
      flushing = Thread.new { Ratrace.flush }
      sleep 0.001 until File.exist?(entered)
      stopping = Thread.new { Ratrace.stop }
      sleep 0.001 while Ratrace.recording?
      child = fork do
        File.delete(slow)
        Ratrace.start(out_dir: OUT)
        7.times { Work.child }
        Ratrace.stop
      end
      wait_well(child)
      [flushing, stopping].each(&:join)
    RUBY
    entered = File.join(out_dir, "entered")
    preload = [*ENV.fetch("LD_PRELOAD", nil), slow_disk].join(":") # a sanitizer's comes first
    run_well(code, out_dir, slow, entered, env: { "LD_PRELOAD" => preload, "SLOW" => slow, "ENTERED" => entered })
    assert_family({ "parent" => 10 }, { "child" => 7 })
  end

  # A library with which writing takes as long as a file is there.
  def slow_disk
    library = File.join(out_dir, "disk.so")
    File.write("#{library}.c", <<~C)
      #define _GNU_SOURCE
      #include <dlfcn.h>
      #include <fcntl.h>
      #include <stdlib.h>
      #include <unistd.h>

      ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at)
      {
          ssize_t (*real)(int, const void *, size_t, off_t) =
              (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
          const char *slow = getenv("SLOW");
          if (access(slow, F_OK) == 0)
              close(open(getenv("ENTERED"), O_CREAT | O_WRONLY, 0600));
          while (access(slow, F_OK) == 0)
              usleep(1000);
          return real(fd, bytes, length, at);
      }
    C
    assert system("cc", "-shared", "-fPIC", "-o", library, "#{library}.c")
    library
  end

  # A parent that forks for ever must not swell.
  def test_300_forks_in_a_row_cost_the_parent_no_memory_and_no_descriptor
    out = record_code(<<~RUBY)
      def self.rss = File.read("/proc/self/statm").split[1].to_i * 4096
      def self.fds = Dir.children("/proc/self/fd").size
      def self.maps = File.foreach("/proc/self/maps").count
      def self.beget(times) = times.times { |i| wait_well(fork { i % 5 == 0 ? Work.child : exit!(true) }) }
      beget(50)
      Ratrace.flush # the segment's file is made by the first flush
      GC.start
      before = [rss, fds, maps]
      beget(250)
      GC.start
      after = [rss, fds, maps]
      puts after.zip(before).map { |now, once| now - once }.inspect
    RUBY
    rss, fds, maps = JSON.parse(out)
    assert_operator rss, :<, 4 << 20
    assert_operator fds, :<=, 0
    assert_operator maps, :<, 20
    tally = calls_by_process
    assert_equal({ "parent" => 20 }, tally.first)
    assert_equal 60, tally.drop(1).sum { |calls| calls.fetch("child") }
  end

  def test_a_child_whose_directory_is_gone_runs_on_and_says_why_nothing_is_recorded
    out = record_code(<<~RUBY)
      wait_well(fork do
        File.rename(OUT, OUT + ".away")
        File.write(OUT, "")
        Work.child
        puts Ratrace.recording?, Ratrace.stats[:failure]
        File.delete(OUT)
        File.rename(OUT + ".away", OUT)
      end)
    RUBY
    assert_match(/\Afalse\n.+\n\z/, out)
    assert_family({ "parent" => 20 })
  end
end
