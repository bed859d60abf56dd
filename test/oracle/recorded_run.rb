# frozen_string_literal: true

require "fileutils"
require "tmpdir"
require_relative "normaliser"
require_relative "program_run"
require_relative "replay"

module Oracle
  # Runs a program under the oracle and reads back what it recorded.
  class RecordedRun
    BOOT = File.join(__dir__, "boot.rb")

    attr_reader :run, :sessions

    def initialize(program, *arguments, c_calls: false, env: {}, ruby_options: [])
      Dir.mktmpdir do |dir|
        variables = { "ORACLE_PROGRAM" => program, "ORACLE_EVENTS" => File.join(dir, "events"),
                      "ORACLE_C_CALLS" => c_calls ? "1" : "0", **env }
        @run = ProgramRun.new("-w", *ruby_options, "-r", BOOT, program, *arguments, env: variables)
        @sessions = Dir[File.join(dir, "events.*")].sort.flat_map { |file| Replay.new(file).sessions }
      end
    end
  end
end
