# frozen_string_literal: true

require "json"
require_relative "errors"

module Ratrace
  class Receiver
    # What a shipper tells of a segment after it was stored: a JSON object that names it in one of the fields below, or
    # comes with the key the segment came with. It is kept in the segment's record; of a segment that is not here it is
    # ignored, because the object may have been stored somewhere else.
    class Finalizing
      NAMES = %w[segment name object object_key key].freeze
      DEPTH = 16

      def initialize(store)
        @store = store
      end

      # @return [String] what became of it
      def call(body, key)
        metadata = parse(body)
        record = named(metadata) || (key && @store.find_key(key))
        return "ignored: no such segment here" unless record

        @store.annotate(record, metadata) ? "stored" : "stored before"
      end

      private

      def parse(body)
        metadata = JSON.parse(body.force_encoding(Encoding::UTF_8), max_nesting: DEPTH)
        return metadata if metadata.is_a?(Hash)

        raise Refusal.new(400, "the metadata must be a JSON object")
      rescue JSON::ParserError, EncodingError
        raise Refusal.new(400, "the metadata is no JSON")
      end

      def named(metadata)
        metadata.values_at(*NAMES).grep(String).each do |value|
          record = @store.find(File.basename(value.delete("\0"))) || @store.find_key(value)
          return record if record
        end
        nil
      end
    end
  end
end
