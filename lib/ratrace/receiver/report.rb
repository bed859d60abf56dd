# frozen_string_literal: true

require_relative "verifier"

module Ratrace
  class Receiver
    # What `ratrace report` computes of a stored segment; the last few are kept.
    #
    # Threads: any number.
    class Report
      KEPT = 8

      def initialize(store, verifier)
        @store = store
        @verifier = verifier
        @kept = {}
        @lock = Mutex.new
      end

      # @param record [Record]
      # @return [Hash] of {Recording#profile}, with threads
      def of(record)
        @lock.synchronize { @kept[record.sha256] } || keep(record, read(record))
      end

      private

      def read(record)
        @verifier.read(@store.path(record)) { |recording| recording.profile(threads: true) }
      rescue Refusal => e
        raise e.class.new(503, "#{record.name} cannot be reported here (#{e.message}); download it and use `ratrace report`")
      end

      def keep(record, profile)
        @lock.synchronize do
          @kept.shift if @kept.size >= KEPT
          @kept[record.sha256] = profile
        end
      end
    end
  end
end
