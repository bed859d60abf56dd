# frozen_string_literal: true

require "tmpdir"
require_relative "program_run"
require_relative "recording_replay"

module Oracle
  # Runs a program under `ratrace record` and reads back what it recorded.
  class ProductRun
    PROJECT = File.expand_path("../..", __dir__)
    EXE = File.join(PROJECT, "exe/ratrace")
    PRELOAD = ENV.to_h.slice("LD_PRELOAD").freeze # a sanitizer's

    attr_reader :run, :replays, :verify

    # A program's own recordings (ORACLE_OUT_DIR) go into the same folder.
    def initialize(program, *arguments, options: [], env: {}, requires: [], lossy: false, timeout: ProgramRun::TIMEOUT)
      Dir.mktmpdir do |dir|
        rubyopt = ["-w", *requires.map { |file| "-r#{file}" }].join(" ")
        variables = { "ORACLE_PROGRAM" => program, "ORACLE_OUT_DIR" => dir, "RUBYOPT" => rubyopt, **PRELOAD, **env }
        @run = ProgramRun.new("-I#{PROJECT}/lib", EXE, "record", "--out-dir", dir, *options, program, "--", *arguments,
                              env: variables, timeout: timeout)
        ratrace("recover", dir) # a process that was killed, or went by `exit!` or `exec`, closed nothing
        @verify = ratrace("verify", dir)
        @replays = replay(dir, lossy)
      end
    end

    def sessions
      @replays.map(&:session)
    end

    def contradictions
      @replays.flat_map(&:contradictions)
    end

    def outcome
      run.outcome
    end

    private

    def ratrace(*arguments)
      ProgramRun.new("-I#{PROJECT}/lib", EXE, *arguments, env: PRELOAD)
    end

    # The events of each process life, in order.
    def replay(dir, lossy)
      require "ratrace/recording"
      lives = Hash.new { |all, session| all[session] = [] }
      Ratrace::Recording.new(dir).each_event { |event| lives[event["session"]] << event }
      lives.values.map { |events| RecordingReplay.new(events, lossy: lossy) }
    end
  end
end
