# frozen_string_literal: true

require "optparse"
require_relative "errors"
require_relative "version"

module Ratrace
  # The command `ratrace`: finds the subcommand, and turns what goes wrong into one line and an exit status.
  class CLI
    # A mistake on the command line.
    class UsageError < Error; end

    SUCCESS = 0
    FAILURE = 1
    USAGE = 2

    # Name, what it does. Each lives in cli/NAME.rb as a class of that name.
    COMMANDS = {
      "record" => "run a Ruby program and record it",
      "report" => "show where the time went, method by method",
      "print" => "show every event in order",
      "verify" => "check a recording and account for every event",
      "recover" => "finish what crashed processes left",
      "ship" => "deliver recordings to a server or to S3-compatible storage",
      "ctl" => "start and stop the recording of a running process",
      "doctor" => "look at everything a recording depends on",
      "top" => "show what running processes are doing",
      "tail" => "show the events of running processes as they come",
      "serve" => "receive recordings of a team's services, and show them"
    }.freeze

    def initialize(out: $stdout, err: $stderr, env: ENV)
      @out = out
      @err = err
      @env = env
    end

    # @param arguments [Array<String>]
    # @return [Integer] exit status
    def run(arguments)
      @out.sync = true if @out.respond_to?(:sync=) # nothing is left to fail at exit
      dispatch(*arguments)
    rescue ConfigurationError => e
      e.message.each_line(chomp: true) { |line| fail_with(line, USAGE) }
      USAGE
    rescue UsageError, OptionParser::ParseError => e
      fail_with(e.message, USAGE)
    rescue Errno::EPIPE
      SUCCESS # whoever read our output has seen enough: `ratrace print | head` is no failure
    rescue Error, SystemCallError, LoadError => e
      fail_with(e.message, FAILURE)
    rescue Interrupt
      128 + Signal.list["INT"]
    end

    private

    def dispatch(name = nil, *arguments)
      case name
      when nil then usage_error("no command given")
      when "-h", "--help" then help
      when "-v", "--version" then version
      when "help" then arguments.empty? ? help : command(arguments.first).run(["--help"])
      else command(name).run(arguments)
      end
    end

    def command(name)
      @name = name if COMMANDS.key?(name)
      usage_error("unknown #{name.start_with?("-") ? "option" : "command"} #{name}#{suggestion(name)}") unless @name

      require_relative "cli/#{name}"
      CLI.const_get(name.capitalize).new(out: @out, err: @err, env: @env)
    end

    def usage_error(message)
      raise UsageError, "#{message}; see `ratrace --help`"
    end

    def suggestion(name)
      require "did_you_mean"
      close = DidYouMean::SpellChecker.new(dictionary: COMMANDS.keys).correct(name).first
      close ? ", did you mean #{close}?" : ""
    rescue LoadError
      ""
    end

    def help
      @out.puts "Usage: ratrace COMMAND [OPTIONS] ...", "", "Records Ruby programs and reads what was recorded.", ""
      COMMANDS.each { |name, summary| @out.puts format("  %-10s%s", name, summary) }
      @out.puts "", "`ratrace COMMAND --help` tells more. Exit status: 0, 1 for a failure, 2 for a wrong command line."
      SUCCESS
    end

    def version
      @out.puts "ratrace #{VERSION}"
      SUCCESS
    end

    def fail_with(message, status)
      line = message.scrub.lines.map(&:strip).reject(&:empty?).join(": ")
      @err.puts ["ratrace", @name, line].compact.join(": ")
      status
    end
  end
end
