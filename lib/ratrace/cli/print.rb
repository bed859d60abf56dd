# frozen_string_literal: true

require_relative "command"
require_relative "text"

module Ratrace
  class CLI
    # `ratrace print`: every event in order.
    class Print < Command
      BATCH = 1024 # lines written at once
      INDENT = "  "

      private

      def define(options)
        options.banner = "Usage: ratrace print [OPTIONS] [FILE|DIR...]\n\nShows every event in order: seconds since " \
                         "the process's first event, lane/context, what happened.\n#{recorded_here_help}"
        options.on("--json", "One JSON object a line: processes, then events, times in ns of CLOCK_MONOTONIC") { @options[:json] = true }
        define_memory(options)
      end

      def execute(operands)
        recording = recording(operands)
        @options[:json] ? print_json(recording) : print_text(recording.each_event)
        refuse_empty(recording) unless @written
        SUCCESS
      end

      def refuse_empty(recording)
        return unless recording.sessions.empty?

        raise ReadError, "#{recording.paths.first}: no recorded data in it; `ratrace verify` says what is"
      end

      # A line for each process, then one for each event.
      def print_json(recording)
        require "json"
        recording.sessions.each { |session| @out.puts JSON.generate(about(session)) }
        write(recording.each_event) { |event| JSON.generate(clean(event)) }
      end

      def about(session)
        { type: "session", session: session[:id], process: (session[:pid] if session[:known]), start_ns: session[:start_ns],
          **session.slice(:service, :host, :ruby).transform_values { |text| Text.clean(text) },
          tags: session[:tags].to_h { |name, text| [Text.clean(name), Text.clean(text)] } }
      end

      # JSON is UTF-8, names need not be.
      def clean(value)
        case value
        when Hash then value.transform_values { |inner| clean(inner) }
        when Array then value.map { |inner| clean(inner) }
        when String then value.encoding == Encoding::UTF_8 ? value : Text.clean(value)
        else value
        end
      end

      def print_text(events)
        @starts = {}
        @stacks = Hash.new { |stacks, context| stacks[context] = [] }
        write(events) { |event| line(event) }
      end

      def write(events)
        lines = []
        events.each do |event|
          lines << yield(event)
          next if lines.size < BATCH

          flush(lines)
        end
        flush(lines)
      end

      def flush(lines)
        return if lines.empty?

        @written = true
        @out.write(lines.join("\n"), "\n")
        lines.clear
      end

      def line(event)
        session, lane, context = event.values_at("session", "lane", "context")
        start = @starts[session]
        head = start ? "" : "process #{event["process"]}, session #{session}\n"
        start ||= @starts[session] = event["t"]
        stack = @stacks[[session, lane, context]]
        seconds, nanoseconds = (event["t"] - start).divmod(1_000_000_000)
        format("%s%4d.%09d  %d/%d  %s", head, seconds, nanoseconds, lane, context, text(event, stack))
      end

      # What happened, indented by what is open; keeps the stack.
      def text(event, stack)
        case event["type"]
        when "call", "c_call" then enter(event, stack)
        when "return", "c_return" then leave("<", stack.pop, stack)
        when "unwind" then leave("unwind #{event["count"]}", stack.pop(event["count"]).first, stack)
        when "snapshot" then snapshot(event, stack)
        when "end" then stack.clear && "end of context #{event["context"]}: #{event["reason"]}"
        when "note" then "note: #{event["note"]} #{event["value"]}"
        when "gate" then gate(event)
        when "cost" then cost(event)
        when "switch" then "switch"
        else "#{INDENT * stack.size}#{event["type"]}"
        end
      end

      def gate(event)
        "gate of #{name_of(event)}: #{event["state"]}, #{Text.number(event["left_out"], "call")} left out so far, " \
          "own cost #{Text.share(event["share"], 1.0)}"
      end

      def cost(event)
        "cost: #{Text.time(event["hooks_ns"])} in #{Text.number(event["events"], "hook")}, serializer " \
          "#{Text.time(event["serializer_ns"])}, process #{Text.time(event["process_ns"])} of CPU time; " \
          "#{Text.time(event["gvl_ns"])} with the GVL"
      end

      def enter(event, stack)
        name = name_of(event)
        stack << name
        "#{INDENT * (stack.size - 1)}> #{name}#{"  #{Text.clean(event["file"])}:#{event["line"]}" if event["file"]}"
      end

      def leave(sign, name, stack)
        "#{INDENT * stack.size}#{sign} #{name || "(unknown)"}"
      end

      def snapshot(event, stack)
        stack.replace(event["frames"].map { |frame| name_of(frame) })
        ["snapshot (#{event["reason"]}): #{Text.number(stack.size, "frame")}", *stack].join("\n    ")
      end

      def name_of(frame)
        Text.frame(owner: frame["owner"], method: frame["method"], called: frame["called"],
                    kind: frame["kind"].to_sym)
      end
    end
  end
end
