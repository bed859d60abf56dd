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

      def recording(operands)
        raise UsageError, "no file or directory given; see `ratrace #{name} --help`" if operands.empty?

        require_relative "../recording"
        Recording.new(*operands, memory_max: @options[:memory_max])
      end

      def name
        self.class.name[/\w+\z/].downcase
      end

      def define_memory(options)
        options.on("--memory-max SIZE", "Memory that reading may take; default 512M") do |text|
          @options[:memory_max] = size(text)
        end
      end
    end
  end
end
