# Two methods that call each other, one of them through a block.

def even(number) = number.zero? ? true : [number - 1].map { |less| odd(less) }.first

def odd(number) = number.zero? ? false : even(number - 1)

puts even(10), odd(7)
