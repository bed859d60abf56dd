# frozen_string_literal: true

require "test_helper"
require "support/processes"
require "support/recordings"

# Ratrace.attach and Ratrace.detach: a lane for each Ractor that asks. In processes of their own, because a process with
# more than one Ractor stays another.
class RactorTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  WORK = <<~RUBY
    require "ratrace"
    module Work
      def self.tick = 1
    end
    OUT = ARGV.first.freeze
  RUBY

  def record_code(code)
    run_well(WORK + code, out_dir)
  end

  # Calls of Work.tick by lane, the busiest last.
  def ticks_by_lane
    events = events_in(out_dir).select { |event| event["type"] == "call" && event["method"] == "tick" }
    events.group_by { |event| event["lane"] }.transform_values(&:size)
  end

  def test_an_attached_ractor_has_a_lane_of_its_own_with_every_call
    out = record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT)
      ractor = Ractor.new do
        p Ratrace.attach, Ratrace.attach
        1000.times { Work.tick }
        p Ratrace.detach, Ratrace.detach
        500.times { Work.tick }
      end
      30.times { Work.tick }
      ractor.take
      Ratrace.stop
    RUBY
    assert_equal "true\ntrue\ntrue\nfalse\n", out
    assert_equal({ 1 => 30, 3 => 1000 }, ticks_by_lane)
    assert_sound(out_dir)
  end

  def test_a_ractor_that_did_not_attach_is_not_recorded
    record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT)
      Work.tick
      Ractor.new { 100.times { Work.tick } }.take
      Ratrace.stop
    RUBY
    assert_equal({ 1 => 1 }, ticks_by_lane)
  end

  def test_ractors_that_attach_at_once_have_different_lanes
    record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT, slot_size: 1 << 20)
      ractors = 8.times.map do
        Ractor.new do
          Ractor.receive
          Ratrace.attach
          1000.times { Work.tick }
          Ratrace.detach
        end
      end
      ractors.each { |ractor| ractor.send(:go) }
      ractors.each(&:take)
      Ratrace.stop
    RUBY
    assert_equal((3..10).to_h { |lane| [lane, 1000] }, ticks_by_lane)
    assert_sound(out_dir)
  end

  # The VM looks for what the Ractor whose hooks changed last wants.
  def test_a_ractor_that_detaches_and_dies_blinds_nobody
    record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT)
      slow = Ractor.new do
        Ratrace.attach
        Ractor.receive
        100.times { Work.tick }
        Ratrace.detach
      end
      3.times { Ractor.new { Ratrace.attach; Ratrace.detach; Ratrace.attach; Work.tick; Ratrace.detach }.take }
      10.times { Work.tick }
      3.times { GC.start }
      10.times { Work.tick }
      slow.send(:go)
      slow.take
      10.times { Work.tick }
      Ratrace.stop
    RUBY
    assert_equal 30, ticks_by_lane.delete(1)
    assert_equal [1, 1, 1, 100], ticks_by_lane.except(1).values.sort
    assert_sound(out_dir)
  end

  def test_ractors_that_are_collected_blind_nobody
    record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT)
      3.times do
        3.times { Ractor.new { 1 }.take }
        GC.start
        10.times { Work.tick }
      end
      Ratrace.stop
    RUBY
    assert_equal({ 1 => 30 }, ticks_by_lane)
  end

  def test_lanes_run_out_with_an_error_and_no_harm
    out = record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT, slot_size: 16_384)
      refused = 20.times.count do
        Ractor.new do
          Ratrace.attach
          Work.tick
          Ratrace.detach
          false
        rescue Ratrace::Error => e
          e.message.match?(/cannot attach this Ractor/)
        end.take
      end
      puts refused
      Ratrace.stop
    RUBY
    assert_equal 20, ticks_by_lane.values.sum + out.to_i
    assert_operator ticks_by_lane.size, :>=, 14
    assert_sound(out_dir)
  end

  def test_a_stop_while_a_ractor_is_attached_is_whole_and_leaves_the_ractor_unharmed
    out = record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT, slot_size: 65_536)
      ractor = Ractor.new do
        Ratrace.attach
        1000.times { Work.tick }
        Ractor.yield :on
        500_000.times { Work.tick }
        Ratrace.detach
      end
      ractor.take
      Work.tick
      path = Ratrace.stop
      GC.start
      puts File.exist?(path), Ratrace.recording?, ractor.take
    RUBY
    assert_equal "true\nfalse\ntrue\n", out
    assert_equal 1, ticks_by_lane[1]
    assert_operator ticks_by_lane[3], :>=, 1000
    assert_sound(out_dir)
  end

  def test_a_ractor_attached_to_a_recording_that_stopped_may_attach_to_the_next
    record_code(<<~RUBY)
      Ratrace.start(out_dir: File.join(OUT, "first"))
      ractor = Ractor.new do
        Ratrace.attach
        10.times { Work.tick }
        Ractor.yield :on
        Ractor.receive
        Ratrace.attach
        20.times { Work.tick }
        Ratrace.detach
      end
      ractor.take
      Ratrace.stop
      Ratrace.start(out_dir: OUT)
      ractor.send(:go)
      ractor.take
      Ratrace.stop
    RUBY
    assert_equal({ 3 => 20 }, ticks_by_lane)
    assert_equal 10, calls_in(File.join(out_dir, "first")).fetch("tick")
    assert_sound(out_dir)
  end

  def test_a_ractor_attached_to_a_recording_that_stopped_counts_as_not_attached_in_the_next
    skip "Ractors do not see it" if RUBY_VERSION >= "4"
    out = record_code(<<~RUBY)
      def Work.first = 1
      Ratrace.start(out_dir: File.join(OUT, "first"), trace: { methods: "Work.first" })
      ractor = Ractor.new do
        Ratrace.attach
        10.times { Work.first }
        Ractor.yield :on
        Ractor.receive
        20.times { Work.tick }
      end
      ractor.take
      Ratrace.stop
      Ratrace.start(out_dir: OUT, trace: { methods: "Work.tick" })
      ractor.send(:go)
      ractor.take
      p Ratrace.stats[:not_attached]
      Ratrace.stop
    RUBY
    assert_equal "20\n", out
    assert_equal 10, calls_in(File.join(out_dir, "first")).fetch("first")
  end

  def test_what_was_stopped_beside_a_ractor_tells_no_call_twice_when_it_starts_again
    record_code(<<~RUBY)
      Ratrace.start(out_dir: File.join(OUT, "first"), trace: { methods: "Work.tick" })
      Ractor.new { nil }.then { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
      Ratrace.stop
      2.times do
        Ratrace.start(out_dir: OUT, trace: { methods: "Work.tick" })
        10.times { Work.tick }
        Ratrace.stop
      end
    RUBY
    assert_equal({ 1 => 20 }, ticks_by_lane)
    assert_sound(out_dir)
  end

  def test_a_ractor_may_end_without_detaching
    record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT)
      2.times do
        Ractor.new do
          Ratrace.attach
          100.times { Work.tick }
          nil
        end.take
        GC.start
      end
      Ratrace.stop
    RUBY
    assert_equal({ 3 => 100, 4 => 100 }, ticks_by_lane)
    assert_sound(out_dir)
  end

  def test_a_process_that_exits_with_a_ractor_attached_exits_as_it_would
    outcome = run_code(<<~RUBY, out_dir)
      #{WORK}
      Ratrace.start(out_dir: OUT)
      ractor = Ractor.new do
        Ratrace.attach
        Work.tick
        Ractor.yield :on
        loop { Work.tick }
      end
      ractor.take
      exit 7
    RUBY
    assert_equal 7, outcome.status.exitstatus, outcome.err
    assert_empty outcome.err
    assert_operator ticks_by_lane.fetch(3), :>, 0
  end

  def test_a_ractors_threads_and_fibers_have_stacks_of_their_own
    record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT)
      Ractor.new do
        Ratrace.attach
        Work.tick
        3.times { Thread.new { Work.tick }.join }
        3.times { Fiber.new { Work.tick }.resume }
        Ratrace.detach
      end.take
      Ratrace.stop
    RUBY
    ticks = events_in(out_dir).select { |event| event["method"] == "tick" }
    assert_equal 7, ticks.map { |event| event["context"] }.uniq.size
    assert_sound(out_dir)
  end

  def test_start_and_stop_belong_to_the_main_ractor
    out = record_code(<<~RUBY)
      puts(Ractor.new(OUT) do |dir|
        Ratrace.start(out_dir: dir)
      rescue StandardError => e
        e.class
      end.take)
      Ratrace.start(out_dir: OUT)
      puts(Ractor.new do
        Ratrace.stop
      rescue Ratrace::Error => e
        e.message
      end.take)
      puts Ratrace.recording?
      Ratrace.stop
    RUBY
    assert_match(/only the main Ractor can\ntrue\n\z/, out)
  end

  # What they would look at is freed by a stop, which does not wait for a Ractor.
  def test_flush_and_stats_belong_to_the_main_ractor
    out = record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT)
      puts(Ractor.new { [Ratrace.flush, Ratrace.stats] rescue $!.message }.take)
      puts(Ractor.new { Ratrace.stats rescue $!.message }.take)
      Ratrace.stop
    RUBY
    assert_equal 2, out.scan(/only the main Ractor can$/).size, out
  end

  def test_a_stop_in_a_ractor_of_a_child_that_recorded_nothing_is_refused
    out = record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT, trace: { methods: "Work.tick" })
      pid = fork { puts(Ractor.new { Ratrace.stop rescue $!.message }.take) }
      Process.wait(pid)
      abort($?.inspect) unless $?.success?
      Ratrace.stop
    RUBY
    assert_match(/only the main Ractor can\n\z/, out)
  end

  # A GC halts all Ractors first.
  def test_ractors_that_attach_while_others_collect_garbage_do_not_hang
    out = record_code(<<~RUBY)
      Ratrace.start(out_dir: OUT, slot_size: 16_384, trace: { methods: "Work.tick" })
      ractors = 6.times.map { Ractor.new { Ractor.receive && Ratrace.attach } }
      GC.stress = true
      ractors.each { |ractor| ractor.send(true) }
      attached = ractors.map(&:take)
      GC.stress = false
      p attached.uniq
      Ratrace.stop
    RUBY
    assert_equal "[true]\n", out
  end
end
