# frozen_string_literal: true

require_relative "command"
require_relative "text"

module Ratrace
  class CLI
    # `ratrace verify`: is the recording whole, and does every event add up?
    class Verify < Command
      TITLES = ["lane", "emitted", "decoded", "dropped", "lost", "unreadable", "in flight", "chunks", "causes"].freeze

      private

      def define(options)
        options.banner = "Usage: ratrace verify [OPTIONS] FILE|DIR...\n\nChecks that the files are whole and free of " \
                         "contradictions, and that per lane\nemitted = decoded + dropped + lost + unreadable + in " \
                         "flight.\nEnds with 0 when all is well, with 1 when it is not.\n\n"
        define_memory(options)
      end

      def execute(operands)
        account = recording(operands).account
        account[:sessions].each { |session| session(session) }
        @problems = account[:files].flat_map { |file| problems_of_file(file) } +
                    account[:sessions].flat_map { |session| problems_of(session) }
        @problems << "no recorded data at all" if account[:sessions].empty?
        @out.puts(@problems.map { |problem| "problem: #{problem}" })
        @out.puts(@problems.empty? ? "ok: every event is accounted for" : failed)
        @problems.empty? ? SUCCESS : FAILURE
      end

      def failed
        "failed: #{Text.number(@problems.size, "problem")}"
      end

      def session(session)
        @out.puts "#{title(session)}: #{Text.clean(session[:service])} on #{Text.clean(session[:host])}, " \
                  "#{segments(session)}, #{ending(session)}"
        lanes = session[:lanes].reject { |lane| lane[:lane].zero? }
        @out.puts Text.table(TITLES, lanes.map { |lane| cells(lane) }) unless lanes.empty?
        notes(session).each { |note| @out.puts "note: #{note}" }
        @out.puts
      end

      def title(session)
        "session #{session[:id][0, 8]} pid #{session[:known] ? session[:pid] : "unknown"}"
      end

      def segments(session)
        numbers = session[:segments].sort.slice_when { |a, b| b != a + 1 }
        ranges = numbers.map { |run| run.size == 1 ? run.first.to_s : "#{run.first}-#{run.last}" }
        "segment#{"s" if session[:segments].size > 1} #{ranges.join(", ")}"
      end

      def ending(session)
        return "ended by a crash, recovered" if session[:crashed]
        return "closed" if session[:stopped]

        "no closing chunk: what came after is unknown"
      end

      def cells(lane)
        numbers = [lane[:emitted], lane[:decoded], lane[:dropped].values.sum, lane[:lost].values.sum,
                   lane[:unreadable], lane[:in_flight], lane[:chunks]]
        [lane[:lane].to_s, *numbers.map { |number| Text.count(number) }, causes(lane)]
      end

      def causes(lane)
        lane[:dropped].merge(lane[:lost]) { |_, a, b| a + b }
                      .map { |cause, count| "#{cause} #{Text.count(count)}" }.join(", ")
      end

      # What is worth saying and nothing wrong with the files.
      def notes(session)
        notes = missing_before(session)
        session[:lanes].each do |lane|
          twice = Text.number(lane[:duplicates], "chunk")
          notes << "lane #{lane[:lane]}: #{twice} met twice, read once" if lane[:duplicates].positive?
          notes << dropped_between(session, lane) if lane[:drop_from_ns]
        end
        notes << "#{Text.number(session[:names_lost], "event")} with lost names" if session[:names_lost].positive?
        if session[:unknown_events].positive?
          notes << "#{Text.number(session[:unknown_events], "event")} of kinds this version does not know"
        end
        notes
      end

      def missing_before(session)
        before = session[:lanes].sum { |lane| lane[:before] }
        return [] unless before.positive?

        ["#{Text.number(before, "event")} in earlier segments that were not given"]
      end

      def dropped_between(session, lane)
        times = lane.values_at(:drop_from_ns, :drop_to_ns).map { |ns| Text.time([ns - session[:first_ns], 0].max) }
        "lane #{lane[:lane]}: drops between #{times.first} and #{times.last} after the start"
      end

      def problems_of_file(file)
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

      def problems_of(session)
        lanes = session[:lanes].flat_map { |lane| problems_of_lane(lane) }
        findings = session[:findings].map do |finding|
          "#{finding[:text]} (#{Text.number(finding[:count], "time")}, first in segment #{finding[:segment]}, " \
            "lane #{finding[:lane]}, chunk #{finding[:sequence]})"
        end
        (lanes + findings + missing_segments(session)).map { |problem| "#{title(session)}: #{problem}" }
      end

      def problems_of_lane(lane)
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
        missing = (session[:segments].min..session[:segments].max).to_a - session[:segments]
        problems = []
        problems << "segment #{missing.join(", ")} missing" unless missing.empty?
        unclosed = session[:unclosed_segments] - [session[:segments].max]
        problems << "segment #{unclosed.join(", ")} without a closing chunk" unless unclosed.empty?
        problems
      end
    end
  end
end
