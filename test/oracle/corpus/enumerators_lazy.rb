# Lazy enumerators: blocks of several methods interleaved.

def twice(number) = number * 2

def small?(number) = number < 12

p (1..Float::INFINITY).lazy.map { |number| twice(number) }.select { |number| (number % 3).zero? }
                      .take_while { |number| small?(number) }.to_a
p (1..4).lazy.flat_map { |number| [number, twice(number)] }.reject { |number| small?(number * 3) }.first(1)
p (1..3).each_entry.with_index.map { |number, index| twice(number) + index }
