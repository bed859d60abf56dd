# frozen_string_literal: true

module Ratrace
  # What {Ratrace.stats} tells: the extension's counters, the exporter's, and in one place why anything is off.
  module Stats
    class << self
      # @return [Hash{Symbol => Object}]
      def read
        stats = Native.stats
        stats[:trace] = Targets.stats if Targets.current
        stats[:exporter] = Exporter.stats
        stats[:off] = off(stats)
        stats
      end

      private

      # What does not work as it was meant to, and why. Empty while all is well.
      def off(stats)
        exporter = stats[:exporter]
        lanes = stats.fetch(:disabled_lanes, 0)
        {
          recording: stats[:failure],
          frame_words: stats[:frame_path_refused],
          hooks: stats[:blind] && "blind: #{stats[:blind].join(", ")}",
          lanes: lanes.positive? ? "#{lanes} disabled: an invariant or the fence failed" : nil,
          live_file: stats[:live_file_refused],
          writing: stats[:last_failure],
          delivery: exporter && exporter[:failures_in_row].positive? ? exporter[:last_error] : nil,
          **attendant
        }.compact
      end

      # Nothing is loaded to ask why it does not run.
      def attendant
        Ratrace.autoload?(:Attendant) ? {} : Attendant.troubles
      end
    end
  end
end
