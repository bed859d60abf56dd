# frozen_string_literal: true

require "optparse"

module Ratrace
  class CLI
    # What the subcommands share: options with --help, an output, sizes with suffixes.
    class Command
      SIZE_UNITS = { "" => 1, "K" => 1024, "M" => 1024**2, "G" => 1024**3 }.freeze

      def initialize(out:, err:, env:)
        @out = out
        @err = err
        @env = env
        @options = {}
      end

      # @return [Integer] exit status
      def run(arguments)
        operands = parse(arguments)
        return SUCCESS unless operands

        execute(operands)
      end

      private

      # The arguments that are no options; nil when --help was all that was wanted.
      def parse(arguments)
        help = false
        parser = OptionParser.new { |options| define(options) }
        parser.on_tail("-h", "--help", "Show this") { help = true }
        operands = order(parser, arguments)
        return operands unless help

        @out.puts parser.help
        nil
      rescue OptionParser::ParseError => e
        raise UsageError, "#{e.message}; see `ratrace #{name} --help`"
      end

      def order(parser, arguments)
        parser.permute(arguments)
      end

      def size(text)
        digits, unit = text.match(/\A(\d+)([KMG]?)(?:i?B)?\z/i)&.captures
        raise OptionParser::InvalidArgument, "#{text} (bytes, or with a suffix: 64K, 8M)" unless digits

        Integer(digits, 10) * SIZE_UNITS.fetch(unit.upcase)
      end

      # One of these; the beginning of only one will do.
      def choice(text, allowed)
        fitting = allowed.include?(text) ? [text] : allowed.select { |one| one.start_with?(text) }
        return fitting.first if fitting.size == 1

        raise OptionParser::InvalidArgument, "#{text} (one of #{allowed.join(", ")})"
      end

      def recording(operands)
        require_relative "../recording"
        operands = [recorded_here] if operands.empty?
        Recording.new(*operands, memory_max: @options[:memory_max])
      end

      # Where `ratrace record` writes when it is started from here.
      def recorded_here
        dir = Configuration.new(env: @env).out_dir
        return dir unless Dir.glob(Recording::PATTERN, base: dir).empty?

        raise UsageError, "no file or directory given, and #{dir}: #{Recording::NONE}; see `ratrace #{name} --help`"
      end

      def name
        self.class.name[/\w+\z/].downcase
      end

      # A part of the help of those that take FILE|DIR.
      def recorded_here_help
        "Without FILE or DIR it reads where `ratrace record` writes: RATRACE_OUT_DIR, else\nratrace.out.\n\n"
      end

      def define_memory(options)
        options.on("--memory-max SIZE", "Memory that reading may take; default 512M") do |text|
          @options[:memory_max] = size(text)
        end
      end
    end
  end
end
