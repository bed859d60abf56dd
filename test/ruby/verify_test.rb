# frozen_string_literal: true

require_relative "recording_helper"
require "ratrace/cli/problems"

class VerifyTest < Minitest::Test
  include RecordingHelper

  def test_a_whole_recording_is_accounted_for
    out = ratrace!("verify", RecordingHelper.of(SHOP))

    assert_match(/^session \h{8} pid \d+: program on .+, segment 1, closed$/, out)
    assert_equal "ok: every event is accounted for", out.lines(chomp: true).last
  end

  def test_the_columns_of_a_lane_add_up
    lane, emitted, decoded, *rest = lanes(ratrace!("verify", RecordingHelper.of(SHOP))).first

    assert_equal 1, lane
    assert_operator emitted, :>, 0
    assert_equal emitted, decoded + rest.first(4).sum
  end

  def test_drops_are_counted_by_cause
    out = RecordingHelper.record(<<~RUBY)
      def step; end
      100_000.times { step }
    RUBY
    Dir.mktmpdir("ratrace-test", MEMORY) do |dir|
      small = File.join(dir, "out")
      Open3.capture2e({ "RATRACE_LIVE_DIR" => dir }, RbConfig.ruby, EXE, "record", "--slot-size", "16384", "--period",
                      "10", "--out-dir", small, File.join(File.dirname(out), "program.rb"))
      text = ratrace!("verify", small)
      _, emitted, decoded, dropped, = lanes(text).first

      assert_equal emitted, decoded + dropped
      assert_match(/slot_full #{Ratrace::CLI::Text.count(dropped)}$/, text)
    end
  end

  def test_a_flipped_byte_in_a_body_is_found_and_its_events_counted
    path = copy_of(RecordingHelper.of(SHOP))
    bytes = File.binread(path)
    bytes.setbyte(at = bytes.index("\x28\xB5\x2F\xFD".b, bytes.size / 3) + 8, bytes.getbyte(at) ^ 1)
    File.binwrite(path, bytes)
    out, _, status = ratrace("verify", path)

    assert_equal 1, status
    assert_match(/^problem: .*(damaged|missing)/, out)
    assert_match(/^failed: \d problems?$/, out)
  end

  # Its last chunk but the closing one loses its marker, so that nothing of it can be read.
  def test_a_chunk_lost_just_before_the_closing_one_is_counted
    killed = RecordingHelper.record(KILLED)
    ratrace!("recover", killed, env: { "RATRACE_LIVE_DIR" => File.dirname(killed) })
    [RecordingHelper.of(SHOP), killed].each do |dir|
      path = copy_of(dir)
      _, emitted, decoded, = lanes(ratrace!("verify", path)).first
      bytes = File.binread(path)
      bytes[bytes.rindex("\x89RAT".b, bytes.rindex("\x89RAT".b) - 1), 4] = "----"
      File.binwrite(path, bytes)
      out, _, status = ratrace("verify", path)
      _, still_emitted, left, dropped, lost, = lanes(out).first

      assert_equal 1, status
      assert_equal [emitted, decoded - left, 0], [still_emitted, lost, dropped]
      assert_operator lost, :>, 0
      assert_match(/^problem: .*lane 1: chunks missing for no recorded reason, #{lost} events? in them$/, out)
    end
  end

  def test_a_torn_file_is_found
    path = copy_of(RecordingHelper.of(SHOP))
    File.truncate(path, File.size(path) - 10)
    out, _, status = ratrace("verify", path)

    assert_equal 1, status
    assert_match(/^problem: .*: ends in the middle of a chunk \(\d+ bytes\)$/, out)
    assert_match(/no closing chunk: what came after is unknown$/, out)
  end

  def test_what_a_killed_process_left_says_that_its_end_is_unknown
    out = ratrace!("verify", RecordingHelper.record(KILLED))

    assert_match(/, no closing chunk: what came after is unknown$/, out)
  end

  def test_recovery_brings_back_what_was_in_memory
    dir = RecordingHelper.record(KILLED)
    _, before, = lanes(ratrace!("verify", dir)).first
    env = { "RATRACE_LIVE_DIR" => File.dirname(dir) }
    recovered = ratrace!("recover", dir, env: env)
    text = ratrace!("verify", dir)
    _, after, = lanes(text).first

    assert_match(/1 segment finished, [1-9]\d* events? recovered/, recovered)
    assert_operator after, :>, before
    assert_match(/, ended by a crash, recovered$/, text)
    assert_match(/0 segments finished, 0 events recovered$/, ratrace!("recover", dir, env: env))
  end

  # Live files of all directories lie together.
  def test_recovery_names_a_live_file_that_nobody_can_read_and_does_the_rest
    dir = RecordingHelper.record(KILLED)
    strange = File.join(File.dirname(dir), "#{"0123456789abcdef" * 2}.live")
    File.binwrite(strange, "x" * 8192)
    recovered = ratrace!("recover", dir, env: { "RATRACE_LIVE_DIR" => File.dirname(dir) })

    assert_includes recovered, "left alone #{strange}: damaged data, and it may be another directory's; " \
                               "nothing of it can be recovered: remove it\n"
    assert_match(/1 segment finished, .*, 1 left alone, perhaps another directory's$/, recovered)
  end

  def test_a_file_of_something_else_fails
    out, _, status = ratrace("verify", __FILE__)

    assert_equal 1, status
    assert_includes out, "problem: no recorded data at all"
  end

  def test_segment_numbers_far_apart_cost_nothing
    session = { id: "0123456789", known: true, pid: 1, lanes: [], findings: [], unclosed_segments: [],
                segments: [4_000_000_000, 7, 1, 3] }
    problems = Ratrace::CLI::Problems.new({ files: [], sessions: [session] }).to_a

    assert_equal ["session 01234567 pid 1: segment 2, 4-6, 8-3999999999 missing"], problems
  end

  private

  # The numbers of each lane's row.
  def lanes(out)
    lines = out.lines(chomp: true)
    first = lines.index { |line| line.start_with?("lane") }
    lines[first + 1..].take_while { |line| !line.empty? }
                      .map { |line| line.split[0, 8].map { |cell| cell.delete(",").to_i } }
  end
end
