# frozen_string_literal: true

require_relative "print"
require_relative "watching"

module Ratrace
  class CLI
    # `ratrace tail`: events of running processes, as they come.
    class Tail < Print
      include Watching

      LINES = 10
      LINES_MAX = 1_000_000
      PAUSE_S = 0.05
      AT_ONCE = 100_000 # events of one look; what came before these is counted

      private

      def define(options)
        options.banner = "Usage: ratrace tail [OPTIONS] PID|DIR\n\nShows the events of a running process, or of all that " \
                         "record into DIR, as they come,\nand ends when they do. They notice nothing of it. What comes " \
                         "faster than it can be\nshown is counted; `ratrace print` shows all that was written.\n\n"
        options.on("-n", "--lines N", Integer, "Begin with the last N events; default #{LINES}") { |n| @options[:lines] = n }
        options.on("--json", "One JSON object a line, times in ns of CLOCK_MONOTONIC") { @options[:json] = true }
        define_memory(options)
      end

      def execute(operands)
        target(operands)
        raise UsageError, "--lines #{lines}: use 0 to #{LINES_MAX}" unless (0..LINES_MAX).cover?(lines)

        require "json" if @options[:json]
        @starts = {}
        @stacks = Hash.new { |stacks, context| stacks[context] = [] }
        @seen = {}
        find_first(memory_max: @options[:memory_max])
        follow until watched.empty?
        SUCCESS
      end

      def lines
        @options.fetch(:lines, LINES)
      end

      def follow
        @several ||= watched.size > 1
        before = clock
        look_at_all { |live| show(live) }
        find_more_sometimes
        rest = PAUSE_S - (clock - before)
        sleep rest if rest.positive? && !watched.empty?
      end

      def show(live)
        first = !@seen.key?(live.name)
        shown = []
        counts = live.look([lines, AT_ONCE].max) { |event| shown << format_event(event) }
        gone = counts[:missed] - @seen.fetch(live.name, 0) + (first ? 0 : counts[:skipped])
        @seen[live.name] = counts[:missed]
        shown = last_of(shown) if first
        shown.unshift(absent(live, gone)) if gone.positive?
        flush(shown)
        counts
      end

      # Whose they are stands before the first one.
      def last_of(shown)
        whose = shown.first.to_s[/\Aprocess .*/]
        shown = shown.last(lines)
        whose && !shown.first.to_s.start_with?(whose) ? [whose, *shown] : shown
      end

      def format_event(event)
        return JSON.generate(clean(event)) if @options[:json]

        @several ? line(event).gsub(/^(?!process )/, "#{event["process"]} ") : line(event)
      end

      def absent(live, count)
        return JSON.generate("type" => "absent", "count" => count, "process" => live.pid) if @options[:json]

        "#{"#{live.pid} " if @several}... #{Text.number(count, "event")} came faster than they could be read"
      end
    end
  end
end
