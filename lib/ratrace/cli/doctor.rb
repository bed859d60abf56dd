# frozen_string_literal: true

require_relative "command"
require_relative "text"
require_relative "../doctor"

module Ratrace
  class CLI
    # `ratrace doctor`: would a process started from here be recorded, and what stands in the way?
    class Doctor < Command
      private

      def define(options)
        options.banner = "Usage: ratrace doctor [OPTIONS]\n\nLooks at everything a recording depends on, with the settings " \
                         "of the environment\nand of RATRACE_CONFIG (those of a Ratrace.configure block are not known " \
                         "here), and\nsays what to do. Ends with 0 when nothing failed.\n\n"
        options.on("--json", "As JSON") { @options[:json] = true }
      end

      def execute(operands)
        raise UsageError, "unknown argument #{operands.first}; see `ratrace doctor --help`" unless operands.empty?

        doctor = Ratrace::Doctor.new(env: @env)
        @options[:json] ? json(doctor) : text(doctor)
        doctor.well? ? SUCCESS : FAILURE
      end

      def text(doctor)
        width = doctor.findings.map { |finding| finding.area.length }.max
        doctor.findings.each do |finding|
          @out.puts "#{finding.level.ljust(7)}  #{finding.area.ljust(width)}  #{Text.clean(finding.text)}"
          @out.puts "#{" " * (width + 11)}-> #{Text.clean(finding.remedy)}" if finding.remedy
        end
        settings(doctor.configuration) if doctor.configuration
      end

      def settings(configuration)
        rows = Settings::ALL.keys.map { |name| [name.to_s, Text.clean(configuration.show(name)), configuration.source(name)] }
        widths = rows.transpose.first(2).map { |column| [column.map(&:length).max, 60].min }
        @out.puts "", "settings:"
        rows.each { |name, value, source| @out.puts "  #{name.ljust(widths[0])}  #{value.ljust(widths[1])}  #{source}" }
      end

      def json(doctor)
        require "json"
        configuration = doctor.configuration
        settings = configuration && Settings::ALL.keys.map do |name|
          { name: name, value: configuration.show(name), source: configuration.source(name) }
        end
        @out.puts JSON.pretty_generate(ok: doctor.well?, findings: doctor.findings.map(&:to_h), settings: settings)
      end
    end
  end
end
