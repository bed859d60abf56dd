# frozen_string_literal: true

require "json"
require "test_helper"
require "support/processes"
require "support/recordings"

# Ways of working that are chosen once: frame words or public calls, membarrier or seq_cst, a counter or the kernel's
# clock. Each must tell the same story, and say that it was chosen.
class CanaryTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  PROGRAM = <<~RUBY
    require "json"
    require "ratrace"
    class Story
      def recursive(levels) = levels.zero? ? 0 : 1 + recursive(levels - 1)
      def yields = yield
      def raises = raise(ArgumentError)
      def rescues = (raises rescue 1)
      def throws = throw(:out)
      def catches = catch(:out) { throws }
      def breaks = yields { break 2 }
      define_method(:from_block) { |x| recursive(x) }
      def overflows(n = 0) = overflows(n + 1)
      def survives
        overflows
      rescue SystemStackError
        recursive(1)
      end
      def ensures
        yield
      ensure
        recursive(1)
      end
      def enumerates = [3, 1, 2].sort_by { |x| recursive(x) }.each_with_index.map { |x, i| from_block(x + i) }
      def told
        recursive(3)
        yields { recursive(2) }
        rescues
        catches
        breaks
        from_block(2)
        enumerates
        (ensures { raises } rescue 0)
        fiber = Fiber.new { yields { Fiber.yield(recursive(1)) }; recursive(2) }
        fiber.resume
        recursive(1)
        fiber.resume
        Thread.new { from_block(1) }.join
        survives unless ARGV[1] == "c" && !ARGV[2]
        recursive(1)
      end
    end
    Ratrace.record(out_dir: ARGV.fetch(0), c_calls: ARGV[1] == "c") do
      Story.new.told
      puts Ratrace.stats.slice(:frame_path, :frame_path_refused, :fence, :clock, :audit_failures).to_json
    end
  RUBY

  SMALL_STACK = { "RUBY_THREAD_VM_STACK_SIZE" => "131072" }.freeze

  # The stats, and the tree of calls: each context's calls with their depth, the overflow's left out.
  def story(variables = {}, *arguments)
    dir = File.join(out_dir, variables.to_a.join)
    out = run_well(PROGRAM, dir, *arguments, env: SMALL_STACK.merge(variables))
    assert_sound(dir)
    [JSON.parse(out), tree(events_in(dir))]
  end

  # Frames of the base are left out: without words it is first looked at in a call, when a block of the program is open.
  def tree(events)
    stacks = Hash.new { |all, context| all[context] = [] }
    lines = Hash.new { |all, context| all[context] = [] }
    events.each do |event|
      stack = stacks[event["context"]]
      case event["type"]
      when "call", "c_call"
        lines[event["context"]] << "#{"  " * stack.count(true)}#{event["owner"]}##{event["method"]}"
        stack << true
      when "return", "c_return" then stack.pop
      when "unwind" then stack.pop(event["count"])
      when "end" then stack.clear
      when "snapshot" then stacks[event["context"]] = event["frames"].map { |frame| !frame["base"] }
      end
    end
    lines.values.map { |calls| calls.grep_v(/overflows/) }
  end

  def test_this_ruby_is_read_by_its_frame_words
    stats, = story
    assert_equal "words", stats["frame_path"]
    assert_nil stats["frame_path_refused"]
    assert_equal 0, stats["audit_failures"]
  end

  def test_the_canary_runs_with_nothing_but_itself
    refute_nil Ratrace::Canary.run
    assert_equal 3, Ratrace::Canary.run
  end

  # The first start runs the nest, and others may run meanwhile.
  SLOW_NEST = <<~RUBY
    require "ratrace"
    INSIDE, ON = Queue.new, Queue.new
    Ratrace::Canary.singleton_class.prepend(Module.new do
      def leaf
        INSIDE << true
        ON.pop
        super
      end
    end)
    def busy(levels) = levels.zero? ? 0 : busy(levels - 1)
    def start = Ratrace.start(out_dir: ARGV.first)
    def path = p(Ratrace.stats.values_at(:frame_path, :frame_path_refused))
    starter = Thread.new { start }
    starter.report_on_exception = false
    INSIDE.pop
  RUBY

  def test_what_others_call_meanwhile_does_not_spoil_the_proof
    out = run_well(SLOW_NEST + <<~RUBY, out_dir)
      busy(10)
      20.times { ON << true }
      starter.join
      path
    RUBY
    assert_equal "[\"words\", nil]\n", out
  end

  def test_a_second_start_meanwhile_is_refused
    out = run_well(SLOW_NEST + <<~RUBY, out_dir)
      puts((start rescue $!.message))
      20.times { ON << true }
      starter.join
      path
      Ratrace.stop
    RUBY
    assert_match(/it is running.*\n\["words", nil\]\n\z/, out)
    assert_equal 1, segments.size
  end

  def test_a_thread_that_is_killed_in_it_ends_and_the_next_start_proves_anew
    out = run_well(SLOW_NEST + <<~RUBY, out_dir)
      p starter.kill.join(10)&.status
      20.times { ON << true }
      start
      path
    RUBY
    assert_equal "false\n[\"words\", nil]\n", out
  end

  def test_frame_words_can_be_refused_and_it_says_why
    stats, public_tree = story("RATRACE_FRAME_WORDS" => "0")
    assert_equal "public", stats["frame_path"]
    assert_equal "frame_words is off", stats["frame_path_refused"]
    assert_equal story.last, public_tree
  end

  def test_c_functions_are_told_alike_by_words_and_by_public_calls
    words = story({}, "c").last
    assert(words.flatten.any? { |line| line.end_with?("Array#each_with_index", "Enumerable#each_with_index") })
    assert_equal words, story({ "RATRACE_FRAME_WORDS" => "0" }, "c").last
  end

  # `+` is the top of the shadow when the stack overflows in it.
  def test_a_c_function_an_overflow_ended_calls_nothing_on_the_public_path
    words = story({}, "c", "overflow").last
    assert_equal words, story({ "RATRACE_FRAME_WORDS" => "0" }, "c", "overflow").last
  end

  def test_without_membarrier_the_same_is_told
    stats, fenced = story("RATRACE_FENCE" => "seq_cst")
    assert_equal "seq_cst", stats["fence"]
    assert_equal story.last, fenced
  end

  def test_membarrier_is_taken_where_there_is_one
    assert_includes %w[membarrier seq_cst], story.first["fence"]
  end

  def test_by_the_kernels_clock_the_same_is_told_with_times_that_do_not_go_back
    stats, timed = story("RATRACE_CLOCK" => "monotonic")
    assert_equal "monotonic", stats["clock"]
    assert_equal story.last, timed
  end

  def test_times_lie_within_the_time_that_passed_whatever_the_clock
    { "tsc" => {}, "monotonic" => { "RATRACE_CLOCK" => "monotonic" } }.each_value do |variables|
      before = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
      story(variables)
      after = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
      times = events_in(File.join(out_dir, variables.to_a.join)).map { |event| event["t"] }
      assert_equal times.sort, times
      assert_operator times.first, :>=, before
      assert_operator times.last, :<=, after
    end
  end

  def test_all_fallbacks_together_tell_the_same
    stats, slow = story("RATRACE_FRAME_WORDS" => "0", "RATRACE_FENCE" => "seq_cst", "RATRACE_CLOCK" => "monotonic")
    assert_equal %w[public seq_cst monotonic], stats.values_at("frame_path", "fence", "clock")
    assert_equal story.last, slow
  end
end
