# frozen_string_literal: true

require "json"
require_relative "recording_helper"
require_relative "support/hostile_segment"

class PrintTest < Minitest::Test
  include RecordingHelper

  def test_every_event_is_a_json_object_in_order_of_time
    events = json

    assert_equal Ratrace::Recording.new(shop).each_event.count, events.size
    assert_equal events.map { |event| event["t"] }.sort, events.map { |event| event["t"] }
  end

  def test_calls_carry_what_is_known_of_the_method
    call = json.find { |event| event["type"] == "call" && event["called"] == "settle" }

    assert_equal ["Shop", "pay", "instance", 4],
                 call.values_at("owner", "method", "kind", "line")
    assert_equal "program.rb", File.basename(call["file"])
  end

  def test_calls_and_returns_balance_in_each_context
    depths = Hash.new(0)
    json.each do |event|
      steps = { "call" => 1, "return" => -1, "unwind" => -event["count"].to_i }
      depths[event["context"]] += steps.fetch(event["type"], 0)
      depths[event["context"]] = event["frames"].size if event["type"] == "snapshot"
      depths.delete(event["context"]) if event["type"] == "end"

      refute_predicate depths[event["context"]], :negative?
    end

    assert_empty depths.values.select(&:positive?)
  end

  def test_snapshots_name_the_frames_open_at_the_start
    snapshot = json.find { |event| event["type"] == "snapshot" && event["base"].positive? }

    assert_equal snapshot["base"], snapshot["frames"].count { |frame| frame["base"] }
    assert_equal "base", snapshot["frames"].first["kind"]
  end

  def test_json_begins_with_who_was_recorded
    Dir.mktmpdir do |dir|
      path = File.join(dir, "a.ratrace")
      File.binwrite(path, HostileSegment.with_tags({ "zone" => "a", "b\xFF" => "\e" }))
      first, second = ratrace!("print", "--json", path).lines.first(2).map { |line| JSON.parse(line) }

      assert_equal({ "type" => "session", "session" => second["session"], "process" => 4711, "start_ns" => 1_700_000_000_000_000_000,
                     "service" => "shop", "host" => "web-1", "ruby" => "3.1.2 x86_64-linux-gnu",
                     "tags" => { "zone" => "a", "b\\xFF" => "\\e" } }, first)
      assert_equal ["snapshot", 4711], second.values_at("type", "process")
    end
  end

  def test_text_is_indented_by_what_is_open
    lines = ratrace!("print", shop).lines(chomp: true).map { |line| line[/\d\/\d+  (.*)/, 1] }.compact
    from = lines.index { |line| line.lstrip.start_with?("> Shop.open") }
    depth = lines[from][/\A */].length

    assert_equal ["> Shop.open", "  > Shop#sell", "    > Shop#sell"],
                 lines[from, 3].map { |line| line[depth..][/\A *> \S+/] }
  end

  def test_text_starts_at_zero_with_the_process
    first, second, = ratrace!("print", shop).lines(chomp: true)

    assert_match(/\Aprocess \d+, session \h{32}\z/, first)
    assert_match(/\A   0\.000000000  /, second)
  end

  def test_an_event_can_be_left_at_any_time
    assert_equal "snapshot", Ratrace::Recording.new(shop).each_event.first["type"]
    assert_raises(IndexError) { Ratrace::Recording.new(shop).each_event { raise IndexError } }
  end

  def test_names_are_utf8_or_bytes
    names = Ratrace::Recording.new(shop).each_event.filter_map { |event| event["method"] }

    assert_empty names.reject(&:valid_encoding?)
    assert(names.all?(&:frozen?))
  end

  def test_a_file_of_something_else_is_one_line
    [[], ["--json"]].each do |options|
      assert_equal ["", "ratrace: print: #{__FILE__}: no recorded data in it; `ratrace verify` says what is\n", 1],
                   ratrace("print", *options, __FILE__)
    end
  end

  private

  def shop
    RecordingHelper.of(SHOP)
  end

  # The events: all but the first line.
  def json
    ratrace!("print", "--json", shop).lines.drop(1).map { |line| JSON.parse(line) }
  end
end
