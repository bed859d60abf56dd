# frozen_string_literal: true

require "test_helper"
require "support/processes"
require "support/recordings"

# The canary: from time to time a recording makes sure that it still sees what it is to record, and says so when not.
class BlindnessTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  PRELUDE = <<~RUBY
    require "ratrace"
    def work = 1
    def wait_until
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 40
      until yield
        abort "waited in vain: \#{Ratrace.stats}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
        GC.start
        sleep 0.01
      end
    end
    def blind = Ratrace.stats[:blind]
    def record(**options) = Ratrace.start(out_dir: ARGV.first, **options)
  RUBY
  OFTEN = { "RATRACE_CANARY_PERIOD" => "0.02" }.freeze

  def run_watched(code, **options)
    run_well("#{PRELUDE}#{code}\nRatrace.stop\n", out_dir, env: OFTEN, **options)
  end

  def blind_notes
    events_in(out_dir).select { |event| event["note"] == "blind" }.map { |event| event["value"] }
  end

  def test_a_recording_that_sees_is_not_blind
    [{}, { c_calls: true }, { trace: { files: "-e" } }].each do |options|
      out = run_watched("record(**#{options})\np blind\nwait_until { Ratrace.stats[:canaries] > 3 }\np blind, Thread.list.size")
      assert_equal "nil\nnil\n1\n", out.lines.last(3).join
      assert_empty blind_notes
      FileUtils.rm_f(segments)
    end
  end

  def test_a_tool_that_disables_all_tracepoints_makes_a_scoped_recording_blind
    out = run_watched("record(trace: { files: '-e' })\nObjectSpace.each_object(TracePoint, &:disable)\n" \
                      "wait_until { blind }\np blind")
    assert_equal %(["call", "return", "script_compiled"]\n), out
    assert_equal [1 | 2 | 16], blind_notes
    report = run_process(RbConfig.ruby, EXE, "report", out_dir)
    assert_match(/^blind:    pid \d+ did not see its call, return, script_compiled events at the end$/, report.out)
  end

  def test_it_is_told_when_all_is_seen_again
    run_watched(<<~RUBY)
      record(trace: { files: "-e" })
      points = ObjectSpace.each_object(TracePoint).select { |point| Ratrace::Native.site_ours?(point) && point.enabled? }
      compiled = points.find { |point| point.disable && !Ratrace::Canary.compiles_seen? }
      wait_until { blind }
      compiled.enable
      wait_until { blind != ["call", "return", "script_compiled"] }
    RUBY
    assert_equal 2, blind_notes.size
    assert_equal 0, blind_notes.last & 16
  end

  def test_canaries_leave_no_calls_in_the_recording
    run_watched("record\nwait_until { Ratrace.stats[:canaries] > 3 }\nwork")
    assert_equal [], calls_in(out_dir).keys & %w[run outer inner leaf through_block through_c body twin compiles_seen?]
    assert_sound(out_dir)
  end

  def test_an_interrupt_that_is_due_is_not_lost_to_a_canary
    out = run_watched(<<~RUBY)
      record(trace: { files: "-e" })
      main = Thread.current
      caught = 0
      50.times do |round|
        begin
          Thread.new { main.raise(IOError, "due") }
          GC.start while true
        rescue IOError
          caught += 1
        end
      end
      p caught
    RUBY
    assert_equal "50\n", out
  end

  # As another extension could: it takes our hook away by its address.
  def test_a_hook_that_was_removed_makes_a_whole_recording_blind
    library = File.join(ROOT, "lib/ratrace/ratrace.so")
    symbols = IO.popen(["nm", library], &:read).scan(/^(\h+) \w rat_hook_(?:words|words_strong|public)$/).flatten
    skip "the extension has no symbols" if symbols.empty?

    out = run_watched(<<~RUBY)
      require "fiddle"
      record
      base = File.readlines("/proc/self/maps").find { |line| line.end_with?("/ratrace.so\n") }.to_i(16)
      remove = Fiddle::Function.new(Fiddle.dlopen(nil)["rb_remove_event_hook"], [Fiddle::TYPE_VOIDP], Fiddle::TYPE_INT)
      removed = #{symbols}.sum { |offset| remove.call(base + offset.to_i(16)) }
      wait_until { blind }
      p removed, blind
    RUBY
    assert_equal %(1\n["call", "return"]\n), out
    assert_equal [1 | 2], blind_notes
  end

  def test_a_frozen_thread_group_is_no_trouble
    out = run_watched(<<~RUBY)
      record
      group = ThreadGroup.new
      group.add(Thread.current)
      group.freeze
      wait_until { Ratrace.stats[:canary_failures] > 0 }
      p $!, blind
    RUBY
    assert_equal "nil\nnil\n", out
  end

  # From Ruby 3.3 on the VM has a table of jobs, for all extensions together.
  def test_a_host_that_has_taken_all_jobs_of_the_vm_runs_none_for_us
    skip "this Ruby has no table of jobs" if RUBY_VERSION < "3.3"
    out = run_well(<<~RUBY, out_dir, env: OFTEN)
      require "fiddle"
      register = Fiddle::Function.new(Fiddle.dlopen(nil)["rb_postponed_job_preregister"],
                                      [-Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP, Fiddle::TYPE_VOIDP], -Fiddle::TYPE_INT)
      ran, jobs, handle = 0, [], 0
      until handle == 0xFFFF_FFFF
        jobs << Fiddle::Closure::BlockCaller.new(Fiddle::TYPE_VOID, [Fiddle::TYPE_VOIDP]) { ran += 1 }
        handle = register.call(0, jobs.last, nil)
      end
      #{PRELUDE}
      record
      wait_until { ran > 0 || Ratrace.stats[:canary_failures] > 3 }
      p ran
      Ratrace.stop
    RUBY
    assert_equal "0\n", out
  end

  def test_a_child_has_canaries_of_its_own
    run_watched(<<~RUBY)
      record
      pid = fork do
        work
        wait_until { Ratrace.stats[:canaries] > 2 }
        Ratrace.stop
      end
      Process.wait(pid)
      exit!(1) unless $?.success?
    RUBY
    assert_equal 2, account_of(out_dir)[:sessions].size
  end
end
