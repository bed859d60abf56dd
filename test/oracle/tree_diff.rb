# frozen_string_literal: true

module Oracle
  # Shows where two normalised recordings differ: both as indented text, and a few lines around each difference.
  class TreeDiff
    CONTEXT_LINES = 4
    DIFFERENT_LINES = 15

    def initialize(expected, actual)
      @expected = text(expected)
      @actual = text(actual)
    end

    # The first difference, `-` for what only the expected side has, `+` for what only the actual side has.
    def to_s
      first = (0..[@expected.size, @actual.size].max).find { |index| @expected[index] != @actual[index] }
      return "no difference" unless first

      from = [first - CONTEXT_LINES, 0].max
      [
        "first difference at line #{first + 1}:",
        *@expected[from...first].map { |line| "  #{line}" },
        *differing(@expected, first, "- "),
        *differing(@actual, first, "+ ")
      ].join("\n")
    end

    private

    def differing(lines, first, mark)
      (lines[first, DIFFERENT_LINES] || []).map { |line| "#{mark}#{line}" }
    end

    def text(contexts)
      contexts.flat_map { |calls| ["context", *calls.flat_map { |call| call_lines(call, 1) }] }
    end

    def call_lines(call, depth)
      owner, method, called, kind, line, ending, children = call
      separator = kind.end_with?("singleton") ? "." : "#"
      also = called == method ? "" : " as #{called}"
      head = "#{"  " * depth}#{owner}#{separator}#{method}#{also} (#{kind}, line #{line}) #{ending}"
      [head, *children.flat_map { |child| call_lines(child, depth + 1) }]
    end
  end
end
