# frozen_string_literal: true

require "timeout"
require_relative "../cli/problems"
require_relative "../recording"
require_relative "errors"
require_relative "record"

module Ratrace
  class Receiver
    # Reads what was sent: one file at a time, within so much memory and time. The reader itself trusts nothing in it.
    #
    # Threads: any number; they wait for each other.
    class Verifier
      MEMORY_MAX = 512 * 1024 * 1024
      SECONDS_MAX = 60

      TooLong = Class.new(StandardError)
      private_constant :TooLong

      def initialize(memory_max: MEMORY_MAX, seconds_max: SECONDS_MAX)
        @memory_max = memory_max
        @seconds_max = seconds_max
        @turn = Mutex.new
      end

      # What {Record.new} takes.
      # @raise [Refusal] 422 when it is no whole recording that adds up
      def summary(path)
        account = read(path, &:account)
        problem, *more = CLI::Problems.new(account).to_a
        return Record.summary(account) unless problem

        refuse("#{problem.delete_prefix("#{path}: ")}#{" (and #{more.size} more)" unless more.empty?}")
      end

      # @yieldparam recording [Recording]
      # @raise [Refusal] 422
      def read(path)
        @turn.synchronize do
          Timeout.timeout(@seconds_max, TooLong) { yield Recording.new(path, memory_max: @memory_max) }
        end
      rescue TooLong
        refuse("reading it takes longer than #{@seconds_max} s")
      rescue ReadError => e
        refuse(e.message.delete_prefix("#{path}: "))
      end

      private

      def refuse(why)
        raise Refusal.new(422, "this segment does not verify: #{why}")
      end
    end
  end
end
