# frozen_string_literal: true

require "test_helper"
require "support/processes"
require "support/recordings"

# Scoped tracing keeps to its limit by counting calls instead of recording them, and its counts are exact.
class GovernorTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  # `hot` is called as fast as Ruby can, `warm` now and then. Prints a Hash.
  PRELUDE = <<~RUBY
    require "ratrace"
    class Work
      def hot = nil
      def warm = nil
      def again(depth) = depth.zero? ? nil : again(depth - 1)
    end
    def burn(until_true, most: 40)
      work = Work.new
      calls = { "hot" => 0, "warm" => 0 }
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + most
      until until_true.call
        abort "waited in vain: \#{Ratrace.stats}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
        i = 0
        while i < 50_000
          work.hot
          i += 1
        end
        work.warm
        calls["hot"] += 50_000
        calls["warm"] += 1
      end
      calls
    end
    def seldom
      1000.times { Integer.sqrt(10**9) }
      yield
    end
    def closed = Ratrace.stats[:governor][:closed]
    Ratrace.start(out_dir: ARGV.first, trace: { methods: "Work#*" })
  RUBY
  PUBLIC_PATH = { "RATRACE_FRAME_WORDS" => "0" }.freeze

  def run_work(code, **options)
    eval(run_well("#{PRELUDE}#{code}\nRatrace.stop\np result\n", out_dir, timeout: 90, **options))
  end

  def run_recursion(env = {})
    code = <<~RUBY
      work = Work.new
      calls = 0
      again = lambda do
        work.again(2000)
        calls += 2001
      end
      again.call until closed > 0
      again.call
      result = { "again" => calls }
    RUBY
    run_work(code, env: { "RUBY_THREAD_VM_STACK_SIZE" => (8 << 20).to_s, **env })
  end

  # By adding up in C: these are millions of events.
  def recorded
    Ratrace::Recording.new(out_dir).profile[:rows].to_h { |row| [row[:frame][:method], row[:calls]] }
  end

  def omissions
    account_of(out_dir)[:sessions].flat_map { |session| session[:omissions] }
  end

  def left_out
    omissions.each_with_object(Hash.new(0)) { |span, sums| sums[span[:frame][:method]] += span[:left_out] }
  end

  # Events that found no room, calls and returns: none, unless the machine left the serializer no time.
  def dropped
    account_of(out_dir)[:sessions].sum { |session| session[:lanes].sum { |lane| lane[:dropped].values.sum } }
  end

  def assert_all_accounted_for(calls)
    lost = dropped
    calls.each do |name, count|
      missing = count - recorded.fetch(name, 0) - left_out[name]
      assert_includes 0..lost, missing, "calls of #{name}, of #{count}, that nothing accounts for but #{lost} drops"
    end
    verified = run_process(RbConfig.ruby, EXE, "verify", out_dir)
    assert verified.success?, verified.out
  end

  def run_until_it_opens(env = {})
    code = <<~RUBY
      calls = burn(-> { closed > 0 })
      work = Work.new
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 120
      until closed.zero?
        abort "stays closed" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
        seldom { work.hot }
        calls["hot"] += 1
      end
      work.hot
      result = calls.merge("hot" => calls["hot"] + 1)
    RUBY
    calls = run_work(code, env: env)
    assert_all_accounted_for(calls)
    refute_nil omissions.first[:to_ns]
  end

  def test_a_busy_method_is_counted_instead_and_every_call_is_accounted_for
    calls = run_work("first = burn(-> { closed > 0 })\nrounds = 0\nresult = burn(-> { (rounds += 1) > 20 })\n" \
                     "result = first.merge(result) { |_, before, after| before + after }")
    assert_operator left_out["hot"], :>, 0
    assert_equal ["hot"], left_out.keys
    assert_all_accounted_for(calls)
  end

  # Time says less: what share of its CPU a busy machine leaves the hooks is not theirs to say.
  def test_next_to_no_call_is_recorded_once_the_busy_method_is_closed
    calls, left_out = run_work(<<~RUBY)
      burn(-> { closed > 0 })
      left_out = -> { Ratrace.stats[:trace][:left_out].values.sum }
      before = left_out.call
      windows = Ratrace.stats[:governor][:windows]
      calls = burn(-> { Ratrace.stats[:governor][:windows] > windows + 2 })
      result = [calls["hot"], left_out.call - before]
    RUBY
    assert_operator calls - left_out, :<=, calls / 100, "recorded of #{calls} calls"
  end

  def test_a_gate_opens_again_when_the_method_is_called_less
    run_until_it_opens
  end

  # Frames that were open when their gate closed return as they should; calls made meanwhile do not disturb them.
  def test_a_recursion_that_is_closed_in_its_middle_ends_right
    assert_all_accounted_for(run_recursion)
    assert_equal 0, account_of(out_dir)[:sessions].sum { |session| session[:unwound] }
  end

  def test_a_child_starts_with_open_gates_and_counts_of_its_own
    code = <<~RUBY
      result = burn(-> { closed > 0 })
      pid = fork do
        5.times { Work.new.hot }
        exit!(1) unless closed.zero?
        Ratrace.stop
        exit!(0)
      end
      Process.wait(pid)
      result = nil unless $?.success?
    RUBY
    calls = run_work(code)
    assert_all_accounted_for(calls.merge("hot" => calls["hot"] + 5))
    child = account_of(out_dir)[:sessions].find { |session| session[:parent_pid] }
    assert_equal 0, child[:left_out]
  end

  def test_calls_of_ractors_that_are_not_attached_are_counted_apart
    skip "Ractors do not see it" if RUBY_VERSION >= "4"
    code = <<~RUBY
      calls = burn(-> { closed > 0 })
      ractors = Array.new(2) { Ractor.new { work = Work.new; 200_000.times { work.hot }; 200_000 } }
      work = Work.new
      200_000.times { work.hot }
      calls["hot"] += 200_000 + ractors.sum { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
      result = calls.merge("hot" => calls["hot"] - Ratrace.stats[:not_attached])
    RUBY
    assert_all_accounted_for(run_work("$VERBOSE = nil\n#{code}"))
  end

  def test_without_frame_words_every_call_is_accounted_for_too
    run_until_it_opens(PUBLIC_PATH)
    assert_operator left_out["hot"], :>, 0
    report = run_process(RbConfig.ruby, EXE, "report", out_dir)
    assert_match(/^own cost: .* \(hooks .*, [1-9]\d* ns each;/, report.out)
  end

  # There a return does not tell which of a method's frames it ends: the gate waits for the last.
  def test_without_frame_words_a_recursion_ends_before_it_is_closed
    assert_all_accounted_for(run_recursion(PUBLIC_PATH))
    assert_equal [0, 0], (%i[unmatched unwound].map { |what| account_of(out_dir)[:sessions].sum { |session| session[what] } })
    assert_equal 0, recorded["again"] % 2001
  end

  # A call is left out, and the gate opens before it returns. It is inside one that was recorded, of the same name.
  def test_the_return_of_a_call_that_was_left_out_ends_no_other
    code = <<~RUBY
      class Inner
        def hot(work)
          seldom { work.warm } until work.nil? || closed.zero?
        end
      end
      class Outer
        def hot(inner)
          from = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
          inner.hot(Work.new)
          sleep 0.3
          Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - from
        end
      end
      Ratrace.stop
      Ratrace.start(out_dir: "#{out_dir}/nested", trace: { methods: %w[Work#* Inner#* Outer#*] })
      inner = Inner.new
      2000.times { inner.hot(nil) } until closed > 0
      result = Outer.new.hot(inner)
    RUBY
    [{}, PUBLIC_PATH].each do |env|
      took = run_work(code, env: env)
      outer = Ratrace::Recording.new("#{out_dir}/nested").profile[:rows].find { |row| row[:frame][:owner] == "Outer" }
      assert_operator outer[:total_ns], :>=, took - 100_000_000
      sessions = account_of("#{out_dir}/nested")[:sessions]
      assert_equal [1, 0], (%i[unmatched unwound].map { |what| sessions.sum { |session| session[what] } })
      FileUtils.rm_rf("#{out_dir}/nested")
    end
  end

  def test_the_report_says_what_was_left_out_and_what_it_cost
    run_work("result = burn(-> { closed > 0 })")
    report = run_process(RbConfig.ruby, EXE, "report", out_dir)
    assert report.success?, report.err
    assert_match(/^traced:   only Work#\*; callers that are not traced are left out of stacks$/, report.out)
    assert_match(/^left out: Work#hot was not traced from [\d.]+ m?s to the end: [\d,]+ calls?$/, report.out)
    assert_match(/^own cost: \d+\.\d% of .* CPU time \(hooks .*, [1-9]\d* ns each; serializer .*\), the VM's apart/, report.out)
  end
end
