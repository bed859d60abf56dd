# frozen_string_literal: true

require_relative "../errors"

module Ratrace
  class Receiver
    # What a client asked for and does not get: a status, and one line that says why.
    class Refusal < Error
      # @return [Integer]
      attr_reader :status
      # @return [Hash{String => String}] headers of the answer
      attr_reader :headers

      def initialize(status, message, headers = {})
        super(message)
        @status = status
        @headers = headers
      end
    end
  end
end
