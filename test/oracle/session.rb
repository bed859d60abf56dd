# frozen_string_literal: true

require_relative "node"

module Oracle
  # What one recording in one process saw: a root per context, and the stack at each call of a probe. A context that
  # was closed and shows up again has a second root.
  class Session
    attr_reader :probes

    def initialize
      @closed = []
      @roots = {}
      @probes = Hash.new { |probes, context| probes[context] = [] }
    end

    def root(context)
      @roots[context] ||= Node.root
    end

    def close(context)
      @closed << @roots.delete(context) if @roots.key?(context)
    end

    def roots
      @closed + @roots.values
    end

    def called(context, stack)
      @probes[context] << stack
    end
  end
end
