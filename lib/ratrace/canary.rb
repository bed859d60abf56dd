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
