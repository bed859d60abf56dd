# frozen_string_literal: true

# Stands in for the gem in a program that starts and stops recordings itself, so the oracle starts and stops with it.
module Ratrace
  class Error < StandardError; end

  class << self
    attr_writer :recorder

    def start(**)
      raise Error, "already recording" if recording?

      @recorder.start
    end

    def stop
      @recorder.stop
    end

    def record(**options)
      start(**options)
      yield
    ensure
      stop
    end

    def recording?
      @recorder.recording?
    end
  end
end
