# frozen_string_literal: true

require_relative "text"

module Ratrace
  class CLI
    # The lines under a report: what it rests on, and what is missing from it.
    class Footer
      PROCESSES_MAX = 10
      OMISSIONS_MAX = 10

      def initialize(account)
        @sessions = account[:sessions]
        @files = account[:files]
        @lanes = @sessions.flat_map { |session| session[:lanes] }
      end

      # @return [Array<String>]
      def lines
        rows = [["events", events], ["stacks", stacks], ["span", span], ["files", files], *clocks, *rubies, *processes, *tags]
        rows.concat(scopes, omissions, costs, blind)
        rows << ["warning", warning] if contradictions.positive?
        rows.map { |title, text| "#{"#{title}:".ljust(10)}#{text}" }
      end

      private

      def sum(field, of: @lanes)
        of.sum { |entry| entry[field] }
      end

      def causes(field)
        @lanes.map { |lane| lane[field] }.reduce({}) { |all, some| all.merge(some) { |_, a, b| a + b } }
      end

      def with_causes(title, causes)
        total = "#{Text.count(causes.values.sum)} #{title}"
        causes.empty? ? total : "#{total} (#{causes.map { |cause, count| "#{cause} #{Text.count(count)}" }.join(", ")})"
      end

      def events
        parts = ["#{Text.count(sum(:decoded))} decoded", with_causes("dropped", causes(:dropped)),
                 with_causes("lost", causes(:lost))]
        parts << "#{Text.count(sum(:unreadable))} unreadable" if sum(:unreadable).positive?
        parts << "#{Text.count(sum(:in_flight))} in flight at the crash" if sum(:in_flight).positive?
        parts << "#{Text.count(sum(:before))} in segments not given" if sum(:before).positive?
        parts.join(", ")
      end

      def stacks
        "#{Text.number(sum(:repairs, of: @sessions), "repair")}, " \
          "#{Text.number(sum(:unmatched, of: @sessions), "unmatched return")}, " \
          "#{Text.number(sum(:unwound, of: @sessions), "frame")} unwound"
      end

      def span
        timed = @sessions.select { |session| session[:last_ns].positive? }
        return "no events" if timed.empty?

        first, last = %i[first_ns last_ns].map do |field|
          timed.map { |session| session[field] + session[:realtime_offset_ns] }.minmax
        end.then { |starts, ends| [starts.first, ends.last] }
        "#{Time.at(0, first, :nsec).utc.strftime("%Y-%m-%d %H:%M:%S.%3N UTC")}, #{Text.time([last - first, 0].max)}"
      end

      def files
        torn = sum(:torn_bytes, of: @files)
        skipped = sum(:skipped_bytes, of: @files)
        text = "#{Text.number(@files.size, "segment")} of #{Text.number(@sessions.size, "process", "processes")}"
        text += ", #{Text.number(skipped, "byte")} damaged" if skipped.positive?
        text += ", #{Text.number(torn, "byte")} torn off" if torn.positive?
        open = @sessions.count { |session| !session[:stopped] }
        text += ", #{open} without a closing chunk: what came after is unknown" if open.positive?
        text
      end

      def clocks
        @sessions.group_by { |session| session[:clock] }.map do |clock, sessions|
          rates = sessions.map { |session| session[:ticks_per_s] }.minmax.uniq.map { |rate| Text.count(rate) }
          ["clock", "#{clock}, #{rates.join(" to ")} ticks/s"]
        end
      end

      def rubies
        @sessions.map { |session| "#{session[:ruby]}, #{session[:recorder]}, by #{session[:frame_path]}" }
                 .uniq.first(PROCESSES_MAX).map { |text| ["ruby", Text.clean(text)] }
      end

      def processes
        lines = @sessions.first(PROCESSES_MAX).map { |session| ["process", process(session)] }
        more = @sessions.size - PROCESSES_MAX
        lines << ["process", "and #{Text.count(more)} more"] if more.positive?
        lines
      end

      def process(session)
        text = "#{Text.clean(session[:service])} on #{Text.clean(session[:host])}, pid #{session[:pid]}"
        text += ", forked by #{session[:parent_pid]}" if session[:parent_pid]
        text += ", crashed" if session[:crashed]
        text
      end

      def tags
        @sessions.reject { |session| session[:tags].empty? }.map { |session| session.slice(:service, :tags) }
                 .uniq.first(PROCESSES_MAX).map do |session|
          ["tags", "#{Text.clean(session[:service])}: #{Text.tags(session[:tags])}"]
        end
      end

      # What a scoped recording is of.
      def scopes
        @sessions.filter_map { |session| session[:trace] }.uniq.first(PROCESSES_MAX).map do |trace|
          ["traced", "only #{Text.clean(trace)}; callers that are not traced are left out of stacks"]
        end
      end

      # What the governor left out on purpose.
      def omissions
        spans = @sessions.flat_map { |session| session[:omissions].map { |span| [session, span] } }
        lines = spans.first(OMISSIONS_MAX).map { |session, span| ["left out", omission(session, span)] }
        more = spans.drop(OMISSIONS_MAX).map(&:last)
        return lines if more.empty?

        lines << ["left out", "and #{Text.number(more.size, "more span", "more spans")}, " \
                              "#{Text.number(more.sum { |span| span[:left_out] }, "call")}"]
      end

      def omission(session, span)
        from, to = span.values_at(:from_ns, :to_ns).map { |ns| ns && Text.time([ns - session[:first_ns], 0].max) }
        "#{Text.frame(span[:frame])} was not traced from #{from} to #{to || "the end"}: " \
          "#{Text.number(span[:left_out], "call")}"
      end

      # What ratrace itself took, as far as the recordings say.
      def costs
        told = @sessions.filter_map { |session| session[:cost] }
        return [] if told.empty?

        hooks, serializer, process, events = %i[hooks_ns serializer_ns process_ns events].map { |key| sum(key, of: told) }
        [["own cost", "#{Text.share(hooks + serializer, process)} of #{Text.time(process)} CPU time (hooks " \
                      "#{Text.time(hooks)}, #{hooks / [events, 1].max} ns each; serializer #{Text.time(serializer)}), " \
                      "the VM's apart"]]
      end

      def blind
        @sessions.filter_map { |session| session[:blind] && session[:pid] && [session[:pid], session[:blind]] }
                 .map { |pid, what| ["blind", "pid #{pid} did not see its #{what.join(", ")} events at the end"] }
      end

      def contradictions
        @contradictions ||= @sessions.sum { |session| session[:findings].sum { |finding| finding[:count] } }
      end

      def warning
        "#{Text.number(contradictions, "contradiction")} in the recording; see `ratrace verify`"
      end
    end
  end
end
