# frozen_string_literal: true

require_relative "text"

module Ratrace
  class CLI
    # What is wrong with a recording, in a line each: damage, contradictions, events nobody accounts for.
    class Problems
      # "session 0123abcd pid 42"
      def self.title(session)
        "session #{session[:id][0, 8]} pid #{session[:known] ? session[:pid] : "unknown"}"
      end

      # @param account [Hash] what {Recording#account} gives
      def initialize(account)
        @account = account
      end

      # @return [Array<String>] empty = every event is accounted for
      def to_a
        problems = of_files + @account[:sessions].flat_map { |session| of_session(session) }
        problems << "no recorded data at all" if @account[:sessions].empty?
        problems
      end

      private

      def of_files
        @account[:files].flat_map { |file| of_file(file) }
      end

      def of_file(file)
        path = Text.clean(file[:path])
        problems = []
        if file[:skipped_bytes].positive?
          problems << "#{path}: #{Text.number(file[:skipped_bytes], "damaged byte")} at " \
                      "#{Text.number(file[:skipped_places], "place")}, the first at byte #{file[:first_skipped_at]}"
        end
        if file[:torn_bytes].positive?
          problems << "#{path}: ends in the middle of a chunk (#{Text.number(file[:torn_bytes], "byte")})" \
                      "#{"; `ratrace recover` finishes it when its process is gone" if path.end_with?(".part")}"
        end
        problems
      end

      def of_session(session)
        lanes = session[:lanes].flat_map { |lane| of_lane(lane) }
        findings = session[:findings].map do |finding|
          "#{finding[:text]} (#{Text.number(finding[:count], "time")}, first in segment #{finding[:segment]}, " \
            "lane #{finding[:lane]}, chunk #{finding[:sequence]})"
        end
        (lanes + findings + missing_segments(session)).map { |problem| "#{Problems.title(session)}: #{problem}" }
      end

      def of_lane(lane)
        problems = []
        unknown = lane[:lost].fetch("unknown", 0)
        if lane[:damaged_chunks].positive?
          problems << "#{Text.number(lane[:damaged_chunks], "chunk")} with a damaged body, " \
                      "#{Text.number(lane[:damaged], "event")} in them"
        end
        if unknown > lane[:damaged] || (lane[:lane].zero? && lane[:lost_chunks].positive?)
          problems << "chunks missing for no recorded reason, #{Text.number(unknown - lane[:damaged], "event")} in them"
        end
        if lane[:unreadable_chunks].positive?
          problems << "#{Text.number(lane[:unreadable_chunks], "chunk")} of a newer format, " \
                      "#{Text.number(lane[:unreadable], "event")} in them; read it with a newer ratrace"
        end
        problems << "does not add up" unless lane[:balanced]
        problems.map { |problem| "lane #{lane[:lane]}: #{problem}" }
      end

      def missing_segments(session)
        missing = gaps(session[:segments].sort)
        problems = []
        problems << "segment #{missing.join(", ")} missing" unless missing.empty?
        unclosed = session[:unclosed_segments] - [session[:segments].max]
        problems << "segment #{unclosed.join(", ")} without a closing chunk" unless unclosed.empty?
        problems
      end

      # Of two numbers a file may name any: what lies between is told, not listed.
      def gaps(numbers)
        numbers.each_cons(2).filter_map do |before, after|
          first, last = before + 1, after - 1
          first == last ? first.to_s : "#{first}-#{last}" if first <= last
        end
      end
    end
  end
end
