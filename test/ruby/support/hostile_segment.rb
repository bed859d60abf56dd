# frozen_string_literal: true

require "fiddle"
require "google/protobuf"
require "open3"
require "tmpdir"

# Segments whose headers hold and whose bodies are an attack: a golden chunk with another body, all checks made right.
module HostileSegment
  PROTO = File.join(ROOT, "proto/ratrace/v1")
  GOLDEN = File.join(ROOT, "test/golden/small.ratrace")
  XXH3 = Fiddle::Function.new(Fiddle.dlopen("libxxhash.so.0")["XXH3_64bits"], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T],
                              -Fiddle::TYPE_LONG_LONG)
  CRC32C = Array.new(256) { |byte| 8.times.inject(byte) { |crc, _| crc[0] == 1 ? crc >> 1 ^ 0x82F63B78 : crc >> 1 } }

  module_function

  def chunk_class
    @chunk_class ||= Dir.mktmpdir do |dir|
      system("protoc", "--proto_path=#{PROTO}", "--ruby_out=#{dir}", "trace.proto", exception: true)
      load File.join(dir, "trace_pb.rb")
      Ratrace::V1::Trace
    end
  end

  # The golden segment, its chunk of events `times` times, with this zstd frame as their body.
  def with_body(frame, raw_bytes:, times: 1)
    opening, events, closing = chunk_class.decode(File.binread(GOLDEN)).chunk.to_a
    bodies = Array.new(times) do |index|
      events.sequence = index + 1
      events.raw_bytes = raw_bytes
      encode(events, frame)
    end
    [encode(opening, opening.body), *bodies, encode(closing, closing.body)].join
  end

  # Zeros that zstd has made small; `told`: the frame says how many.
  def zeros(bytes, told:)
    command = "head -c #{bytes} /dev/zero | zstd -q -c #{"--stream-size=#{bytes}" if told}"
    Open3.capture2(command, binmode: true).first
  end

  def encode(chunk, body)
    chunk.header_check = 0
    chunk.body = ""
    chunk.body_bytes = body.bytesize
    chunk.body_check = XXH3.call(body, body.bytesize) & 0xFFFF_FFFF_FFFF_FFFF
    tail = "\xFA\x01".b + varint(body.bytesize) + body
    chunk.size = chunk.class.encode(chunk).bytesize + 6 + tail.bytesize
    head = chunk.class.encode(chunk)
    message = head + "\xF5\x01".b + [crc(head)].pack("V") + tail
    "\n".b + varint(message.bytesize) + message
  end

  def crc(bytes)
    bytes.each_byte.inject(0xFFFF_FFFF) { |crc, byte| crc >> 8 ^ CRC32C[(crc ^ byte) & 255] } ^ 0xFFFF_FFFF
  end

  def varint(number)
    bytes = []
    while number > 127
      bytes << (number & 127 | 128)
      number >>= 7
    end
    [*bytes, number].pack("C*")
  end
end
