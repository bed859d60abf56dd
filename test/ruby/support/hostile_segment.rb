# frozen_string_literal: true

require "fiddle"
require "open3"

# Segments whose headers hold and whose bodies are an attack: a golden chunk with another body, all checks made right.
# Knows of protobuf what it needs, because not every Ruby has a library for it.
module HostileSegment
  GOLDEN = File.join(ROOT, "test/golden/small.ratrace")
  XXH3 = Fiddle::Function.new(Fiddle.dlopen("libxxhash.so.0")["XXH3_64bits"], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T],
                              -Fiddle::TYPE_LONG_LONG)
  CRC32C = Array.new(256) { |byte| 8.times.inject(byte) { |crc, _| crc[0] == 1 ? crc >> 1 ^ 0x82F63B78 : crc >> 1 } }

  # Field numbers of ratrace.v1.Chunk.
  SIZE, SEQUENCE, RAW_BYTES, BODY_BYTES, BODY_CHECK, INFO, HEADER_CHECK, BODY = 2, 8, 18, 19, 20, 21, 30, 31

  module_function

  # The golden segment, its chunk of events `times` times, with this zstd frame as their body.
  def with_body(frame, raw_bytes:, times: 1)
    opening, events, closing = chunks
    bodies = Array.new(times) do |index|
      encode(events.merge(SEQUENCE => varint(index + 1), RAW_BYTES => varint(raw_bytes), BODY_BYTES => varint(frame.bytesize),
                          BODY_CHECK => [XXH3.call(frame, frame.bytesize)].pack("q<"), BODY => varint(frame.bytesize) + frame))
    end
    [encode(opening), *bodies, encode(closing)].join
  end

  # A segment as of a service with these tags.
  def with_tags(tags, segment = File.binread(GOLDEN))
    opening, *others = chunks(segment)
    length, start = read_varint(opening.fetch(INFO), 0)
    info = opening.fetch(INFO).byteslice(start, length) + tags.map { |name, text| tag_of(name.b, text.b) }.join
    [opening.merge(INFO => varint(info.bytesize) + info), *others].map { |chunk| encode(chunk) }.join
  end

  # Field 17 of ratrace.v1.Session: a name, a text.
  def tag_of(name, text)
    tag = "\x0A".b + varint(name.bytesize) + name + "\x12".b + varint(text.bytesize) + text
    "\x8A\x01".b + varint(tag.bytesize) + tag
  end

  # Zeros that zstd has made small; `told`: the frame says how many.
  def zeros(bytes, told:)
    command = "head -c #{bytes} /dev/zero | zstd -q -c #{"--stream-size=#{bytes}" if told}"
    Open3.capture2(command, binmode: true).first
  end

  # A segment's chunks: the bytes of each field's value by its number.
  def chunks(bytes = File.binread(GOLDEN))
    list = []
    at = 0
    while at < bytes.bytesize
      length, start = read_varint(bytes, at + 1)
      list << fields(bytes.byteslice(start, length))
      at = start + length
    end
    list
  end

  def fields(message)
    found = {}
    at = 0
    while at < message.bytesize
      tag, start = read_varint(message, at)
      at = skip(message, start, tag & 7)
      (found[tag] ||= +"".b) << message.byteslice(start...at)
    end
    found.transform_keys { |tag| @tags ||= {}; @tags[tag >> 3] = tag; tag >> 3 }
  end

  def skip(message, at, type)
    case type
    when 0 then read_varint(message, at).last
    when 1 then at + 8
    when 2 then read_varint(message, at).sum
    when 5 then at + 4
    end
  end

  # With its size and its header's check made right; the check stands right before the body.
  def encode(chunk)
    rest = chunk.except(HEADER_CHECK, BODY)
    tail = tagged(BODY, chunk.fetch(BODY))
    size = rest.sum { |number, value| tagged(number, value).bytesize } + 6 + tail.bytesize
    head = rest.merge(SIZE => [size].pack("V")).map { |number, value| tagged(number, value) }.join
    message = head + tagged(HEADER_CHECK, [crc(head)].pack("V")) + tail
    "\n".b + varint(message.bytesize) + message
  end

  def tagged(number, value)
    varint(@tags.fetch(number)) + value
  end

  def crc(bytes)
    bytes.each_byte.inject(0xFFFF_FFFF) { |crc, byte| crc >> 8 ^ CRC32C[(crc ^ byte) & 255] } ^ 0xFFFF_FFFF
  end

  # Its value, and where it ends.
  def read_varint(bytes, at)
    value = shift = 0
    loop do
      byte = bytes.getbyte(at)
      value |= (byte & 127) << shift
      at += 1
      return [value, at] if byte < 128

      shift += 7
    end
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
