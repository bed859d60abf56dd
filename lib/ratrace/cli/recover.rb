# frozen_string_literal: true

require_relative "command"
require_relative "text"

module Ratrace
  class CLI
    # `ratrace recover`: finish what crashed processes left.
    class Recover < Command
      private

      def define(options)
        options.banner = "Usage: ratrace recover DIR...\n\nFinishes the segments that killed or crashed processes left " \
                         "in DIR,\nwith what their memory still held. Processes that live are left alone;\n" \
                         "running it twice does no harm.\n\n"
      end

      def execute(operands)
        raise UsageError, "no directory given; see `ratrace recover --help`" if operands.empty?

        require_relative "../../ratrace"
        operands.map { |dir| recover(dir) }.max
      end

      def recover(dir)
        raise ReadError, "#{dir}: no such directory" unless File.directory?(dir)

        result = Native.recover(dir, @env["RATRACE_LIVE_DIR"])
        @out.puts(result[:lines].map { |line| Text.clean(line) })
        @out.puts "#{dir}: #{summary(result)}"
        result[:failed].zero? && result.fetch(:ok, true) ? SUCCESS : FAILURE
      end

      def summary(result)
        parts = ["#{Text.number(result[:segments], "segment")} finished",
                 "#{Text.number(result[:events], "event")} recovered"]
        parts << "#{Text.count(result[:in_flight])} in flight at the crash" if result[:in_flight].positive?
        parts << "#{Text.number(result[:cut_bytes], "byte")} torn off" if result[:cut_bytes].positive?
        parts << "#{result[:power_lost]} of an earlier boot, not believed" if result[:power_lost].positive?
        parts << "#{result[:alive]} still being written" if result[:alive].positive?
        parts << "#{result[:unplaced]} left alone, perhaps another directory's" if result[:unplaced].positive?
        parts << "#{result[:failed]} failed" if result[:failed].positive?
        parts.join(", ")
      end
    end
  end
end
