# Refinements: their methods, super into the refined class, a refined operator.

module Shout
  refine String do
    def loud = upcase_all(self)

    def upcase_all(text) = text.upcase

    def size = super + 100
  end

  refine Integer do
    def +(other) = "sum #{other}"
  end
end

using Shout
puts "abc".loud, "abc".size, 1 + 2
puts %w[x y].map(&:loud).inspect
