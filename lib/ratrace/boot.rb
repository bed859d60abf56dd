# frozen_string_literal: true

# Loaded by `ratrace record` with ruby's -r, before the program: takes its options out of the environment, so that the
# program sees the environment it would see without ratrace, and starts. The handler that stops the recording is the
# first at_exit handler there is, hence the last to run: the program's own are recorded.

require_relative "../ratrace"

module Ratrace
  # Start as `ratrace record` asked. A mistake was found by the command before; what is left (a full disk, a directory
  # that vanished) must not keep the program from running.
  module Boot
    VARIABLE = "RATRACE_BOOT"

    # The value of {VARIABLE} for these options of {Ratrace.start}.
    def self.pack(options)
      [Marshal.dump(options)].pack("m0")
    end

    def self.start
      text = ENV.delete(VARIABLE)
      return unless text

      Ratrace.start(**Marshal.load(text.unpack1("m0"))) # no library is loaded that the program might not want
    rescue Error => e
      warn "ratrace: not recording: #{e.message}"
    end
  end
end

Ratrace::Boot.start if ENV.key?(Ratrace::Boot::VARIABLE)
