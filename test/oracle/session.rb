# frozen_string_literal: true

require_relative "node"

module Oracle
  # What one recording in one process saw: a root per context, and the stack at each call of a probe.
  class Session
    attr_reader :probes

    def initialize
      @roots = {}
      @probes = Hash.new { |probes, context| probes[context] = [] }
    end

    def root(context)
      @roots[context] ||= Node.root
    end

    def roots
      @roots.values
    end

    def called(context, stack)
      @probes[context] << stack
    end
  end
end
