# frozen_string_literal: true

require "test_helper"
require "tmpdir"

# Our files are read back by tools that know nothing of us: protoc, Google's protobuf library and the zstd command.
# What they must find is said here in so many words; the program that wrote the files is test/golden/scenes.h.
class BytesTest < Minitest::Test
  GOLDEN = File.join(ROOT, "test/golden")
  PROTO = File.join(ROOT, "proto/ratrace/v1")
  KINDS = { call: 1, return: 2, c_call: 3, c_return: 4, unwind: 5, unmatched: 6, switch: 7, snapshot: 32, end: 33, note: 34 }.freeze

  # Classes for our messages, generated once.
  def self.messages
    @messages ||= Dir.mktmpdir do |dir|
      system("protoc", "--proto_path=#{PROTO}", "--ruby_out=#{dir}", "trace.proto", exception: true)
      gem "google-protobuf" # this Ruby's: a system's library folder may hold another Ruby's, and comes first
      require "google/protobuf"
      load File.join(dir, "trace_pb.rb")
      Ratrace::V1
    end
  end

  def chunks(scene) = self.class.messages::Trace.decode(bytes_of(scene)).chunk.to_a

  def bytes_of(scene) = File.binread(File.join(GOLDEN, "#{scene}.ratrace"))

  # The chunk's body, decompressed by the zstd command.
  def body(chunk)
    bytes = chunk.body
    if chunk.codec == :CODEC_ZSTD
      bytes, err, status = Open3.capture3("zstd", "-d", "-c", stdin_data: bytes, binmode: true)
      assert_predicate status, :success?, err
    end
    assert_equal chunk.raw_bytes, bytes.bytesize
    self.class.messages::Body.decode(bytes)
  end

  def kinds(body) = body.kind.bytes.map { |number| KINDS.key(number) || number }

  # Drops as a hash from cause to count.
  def drops(totals) = totals.drop.to_h { |drop| [drop.cause, drop.count] }

  # What protoc prints.
  def protoc(scene)
    out, err, status = Open3.capture3("protoc", "--proto_path=#{PROTO}", "--decode=ratrace.v1.Trace", "trace.proto",
                                      stdin_data: bytes_of(scene), binmode: true)
    assert_predicate status, :success?, err
    out
  end

  def test_protoc_reads_each_golden_segment
    counts = %w[small lost packed text].to_h { |scene| [scene, protoc(scene).scan(/^chunk \{$/).size] }

    assert_equal({ "small" => 3, "lost" => 4, "packed" => 3, "text" => 3 }, counts)
  end

  def test_protoc_finds_no_field_it_does_not_know
    %w[small lost packed text].each { |scene| refute_match(/^\s*\d+[:{ ]/, protoc(scene)) }
  end

  def test_the_opening_chunk_says_who_recorded
    opening = chunks("small").first
    info = opening.info

    assert_equal "\x89RAT\r\n\x1a\ngoldrush".b, opening.sync
    assert_equal [0x0123456789ABCDEF, 0xFEDCBA9876543210], [opening.session_hi, opening.session_lo]
    assert_equal [0, 1, 1, :REASON_OPENING], [opening.lane, opening.segment, opening.sequence, opening.reason]
    assert_equal ["shop", "web-1", 4711, 4710], [info.service, info.host, info.pid, info.parent_pid]
    assert_equal "boot-id-16-bytes", info.boot_id
    assert_equal [0, 1, 0, 2].pack("N4"), info.parent_session
    assert_equal [1_700_000_000_000_000_000, 3_000_000_000, 32_768], [info.start_ns, info.ticks_per_s, info.slot_bytes]
    assert_equal %i[CLOCK_KIND_TSC FENCE_KIND_MEMBARRIER FRAME_PATH_WORDS], [info.clock, info.fence, info.frame_path]
    assert_equal ["3.1.2 x86_64-linux-gnu", "ratrace 0.1.0"], [info.ruby, info.recorder]
  end

  def test_a_chunk_says_its_own_size
    %w[small lost packed text].each do |scene|
      chunks(scene).each do |chunk|
        assert_equal chunk.size, chunk.class.encode(chunk).bytesize + (chunk.body.empty? ? 3 : 0) # an empty body is written
        assert_equal chunk.body_bytes, chunk.body.bytesize
      end
    end
  end

  def test_columns_hold_what_was_recorded
    chunk = chunks("small")[1]
    columns = body(chunk)

    assert_equal [1, 1, :REASON_STOP, 10], [chunk.lane, chunk.sequence, chunk.reason, chunk.events]
    assert_equal [0, 10], [chunk.opened.stored, chunk.closed.stored]
    assert_equal 1010, columns.base_ticks
    assert_equal %i[snapshot call c_call c_return switch unwind return unmatched note end], kinds(columns)
    assert_equal [0, 100, 127, 128, 2**40, 16_384, 2**34 - 1, 1, 2, 3], columns.gap.to_a
    assert_equal [2, 3, 2, 1], columns.id.to_a # call, c_call: frames; switch: a context; unwind: frames dropped
    assert_equal [3, 1, 1], columns.rich_words.to_a
    assert_equal [1 << 32 | 1, 1 << 32 | 1, 5, 3 << 32 | 10_000, 2 << 32 | 1], columns.rich.to_a
  end

  def test_a_chunk_brings_the_names_its_events_use
    columns = body(chunks("small")[1])

    assert_equal({ 2 => "Cart", 3 => "total", 4 => "app/cart.rb", 5 => "na\xEFve".b, 6 => "main" },
                 columns.name.to_h { |name| [name.id, name.text] })
    assert_equal({ 5 => :ENCODING_BINARY, 6 => :ENCODING_UTF8 },
                 columns.name.to_h { |name| [name.id, name.encoding] }.slice(5, 6))
    assert_equal [{ id: 2, owner: 2, method: 3, file: 4, line: 10, kind: :FRAME_KIND_INSTANCE },
                  { id: 3, owner: 2, method: 5, called_as: 3, file: 4, line: 20, kind: :FRAME_KIND_C_SINGLETON }],
                 columns.frame.map { |frame| without_zeros(frame) }
    assert_equal [{ id: 1, kind: :CONTEXT_KIND_THREAD, os_tid: 4712, name: 6, seen_ticks: 1000, lane: 1 },
                  { id: 2, kind: :CONTEXT_KIND_FIBER, parent: 1, seen_ticks: 1300, lane: 1 }],
                 columns.context.map { |context| without_zeros(context) }
  end

  def test_the_closing_chunk_repeats_the_dictionary
    closing = chunks("small").last
    columns = body(closing)

    assert_equal [0, 2, :REASON_CLOSING, 0], [closing.lane, closing.sequence, closing.reason, closing.events]
    assert_equal [1, 2, 3, 4, 5, 6], columns.name.map(&:id)
    assert_equal "(dictionary full)", columns.name.first.text
    assert_equal [1, 2, 3], columns.frame.map(&:id)
    assert_equal :FRAME_KIND_SPECIAL, columns.frame.first.kind
    assert_equal [1, 2], columns.context.map(&:id)
  end

  def test_totals_tell_what_a_missing_chunk_held
    _, first, third, other = chunks("lost")

    assert_equal [[1, 1], [1, 3], [2, 1]], [first, third, other].map { |chunk| [chunk.lane, chunk.sequence] }
    assert_equal 7, third.opened.stored - first.closed.stored
    assert_equal [{ CAUSE_SLOT_FULL: 3 }] * 3, [first.closed, third.opened, third.closed].map { |totals| drops(totals) }
    assert_equal({ CAUSE_OUT_OF_MEMORY: 1, CAUSE_NO_LANE: 2 }, drops(other.closed))
    assert_equal [1, 0], [third.in_flight, other.in_flight]
    assert_equal [{ cause: :CAUSE_WRITE_FAILED, first_seq: 2, last_seq: 2, count: 7 },
                  { cause: :CAUSE_SLOT_FULL, count: 3, from_ticks: 1500, to_ticks: 1600 }],
                 third.lost.map { |lost| without_zeros(lost) }
  end

  def test_anchors_tie_ticks_to_the_clocks
    third = chunks("lost")[2]

    assert_equal [{ ticks: 3000, monotonic_ns: 999, realtime_ns: 1_700_000_000_000_000_333, width_ticks: 30 },
                  { ticks: 3900, monotonic_ns: 1899, realtime_ns: 1_700_000_000_000_000_633, width_ticks: 31 }],
                 [third.start, third.end].map(&:to_h)
  end

  def test_the_zstd_command_reads_a_compressed_body
    chunk = chunks("packed")[1]
    columns = body(chunk)

    assert_equal [:CODEC_ZSTD, :REASON_HALF_FULL, 1000], [chunk.codec, chunk.reason, chunk.events]
    assert_equal %i[call return] * 500, kinds(columns)
    assert_equal (0...500).flat_map { |i| [100 + i, 50] }, columns.gap.to_a
    assert_equal [2, 3] * 250, columns.id.to_a
  end

  def test_text_may_hold_a_whole_segment
    _, first, second = chunks("text")

    assert_equal ["stranger"] * 2, [first, second].map { |chunk| chunk.sync.byteslice(8, 8) }
    assert_equal [bytes_of("small"), "\n\x10\x89RAT\r\n\x1a\ngoldrush".b], body(first).name.map { |name| name.text.b }
    assert_empty body(second).name
  end

  private

  def without_zeros(message) = message.to_h.reject { |_, value| value == 0 }
end
