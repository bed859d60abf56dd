# frozen_string_literal: true

# Loaded by `ruby -r`: records the program ORACLE_PROGRAM into files that start with ORACLE_EVENTS.

require_relative "recorder"
require_relative "first_line"
require_relative "ratrace_double"

recorder = Oracle::Recorder.new(ENV.fetch("ORACLE_EVENTS"), c_calls: ENV["ORACLE_C_CALLS"] == "1")
Ratrace.recorder = recorder
at_exit { recorder.stop }
Oracle::FirstLine.of(ENV.fetch("ORACLE_PROGRAM")) { recorder.start }
