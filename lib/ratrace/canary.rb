# frozen_string_literal: true

module Ratrace
  # The fixed nest of calls by which the extension proves, at the first start, that it reads this Ruby's frames right:
  # methods calling methods directly, through a block, through a C function, and a define_method body.
  module Canary
    class << self
      # @return [Integer] 3
      def run
        outer
      end

      # For TracePoints in the place of a hook.
      # @return [Array<Method>]
      def methods_of_run
        %i[run outer inner leaf through_block through_c body twin].map { |name| method(name) }
      end

      # Does a scoped recording learn of code that is loaded now?
      def compiles_seen?
        Targets.compiles_seen?
      end

      private

      def outer
        inner + through_block { leaf } + through_c
      end

      def inner
        leaf
      end

      def leaf
        1
      end

      def through_block
        yield
      end

      def through_c
        [1].each { |one| return body(one) }
      end

      define_method(:body) { |one| twin(one) }
      define_method(:twin) { |one| one }
    end
  end
end
