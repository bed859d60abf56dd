# frozen_string_literal: true

require_relative "command"
require_relative "problems"
require_relative "text"

module Ratrace
  class CLI
    # `ratrace verify`: is the recording whole, and does every event add up?
    class Verify < Command
      TITLES = ["lane", "emitted", "decoded", "dropped", "lost", "unreadable", "in flight", "chunks", "causes"].freeze

      private

      def define(options)
        options.banner = "Usage: ratrace verify [OPTIONS] [FILE|DIR...]\n\nChecks that the files are whole and free of " \
                         "contradictions, and that per lane\nemitted = decoded + dropped + lost + unreadable + in " \
                         "flight.\nEnds with 0 when all is well, with 1 when it is not.\n#{recorded_here_help}"
        define_memory(options)
      end

      def execute(operands)
        account = recording(operands).account
        account[:sessions].each { |session| session(session) }
        @problems = Problems.new(account).to_a
        @out.puts(@problems.map { |problem| "problem: #{problem}" })
        @out.puts(@problems.empty? ? "ok: every event is accounted for" : failed)
        @problems.empty? ? SUCCESS : FAILURE
      end

      def failed
        "failed: #{Text.number(@problems.size, "problem")}"
      end

      def session(session)
        @out.puts "#{Problems.title(session)}: #{Text.clean(session[:service])} on #{Text.clean(session[:host])}, " \
                  "#{segments(session)}, #{ending(session)}"
        lanes = session[:lanes].reject { |lane| lane[:lane].zero? }
        @out.puts Text.table(TITLES, lanes.map { |lane| cells(lane) }) unless lanes.empty?
        notes(session).each { |note| @out.puts "note: #{note}" }
        @out.puts
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
    end
  end
end
