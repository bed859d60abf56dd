# frozen_string_literal: true

require_relative "command"
require_relative "program"

module Ratrace
  class CLI
    # `ratrace record`: becomes the program, with the recorder loaded before it. Output, exit status, signals, $0, ARGV
    # and the order of at_exit are the program's own.
    class Record < Command
      BOOT = File.expand_path("../boot.rb", __dir__)

      private

      def define(options)
        options.banner = "Usage: ratrace record [OPTIONS] SCRIPT|COMMAND [ARGUMENTS]\n\nRuns a Ruby script, a command " \
                         "in PATH that is one, or `ruby` with its arguments,\nand records every call. " \
                         "With RATRACE_DISABLED=1 it only runs it.\n\n"
        options.on("--out-dir DIR", "Where segments go; default RATRACE_OUT_DIR, else ratrace.out") do |dir|
          @options[:out_dir] = dir
        end
        options.on("--period S", Float, "Seconds between two flushes; default 1") { |s| @options[:period] = s }
        options.on("--slot-size SIZE", "Each of two buffers, e.g. 512K or 8M; default 8M") do |text|
          @options[:slot_size] = size(text)
        end
        options.on("--c-calls", "Record methods written in C, too") { @options[:c_calls] = true }
        options.on("--include GLOB", "Only methods of files that match; may be repeated") { |glob| add(:include, glob) }
        options.on("--exclude GLOB", "No methods of files that match; may be repeated") { |glob| add(:exclude, glob) }
      end

      def add(option, glob)
        (@options[option] ||= []) << glob
      end

      # Options end at the program's name; what follows is the program's.
      def order(parser, arguments)
        parser.order(arguments)
      end

      def execute(operands)
        name, *arguments = operands
        raise UsageError, "no program given; see `ratrace record --help`" unless name

        arguments.shift if arguments.first == "--"
        disabled = @env["RATRACE_DISABLED"] == "1"
        check_settings unless disabled
        program = Program.new(name, path: @env.fetch("PATH", ""))
        arguments = [*program.ruby_arguments, *arguments]
        return run_plain(arguments) if disabled

        become({ Boot::VARIABLE => Boot.pack(@options) }, ["-r#{BOOT}", *arguments])
      end

      # First: which settings are allowed is no matter of the program's.
      def check_settings
        require_relative "../boot"
        Configuration.new(@options, env: @env)
      end

      def run_plain(arguments)
        become({}, arguments)
      end

      def become(env, arguments)
        exec(env, [RbConfig.ruby, RbConfig.ruby], *arguments)
      end
    end
  end
end
