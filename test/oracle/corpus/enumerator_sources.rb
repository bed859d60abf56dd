# Enumerator::Lazy#eager, produce, chains and sizes computed by methods.

def grow(number) = number + 3

p Enumerator.produce(1) { |number| grow(number) }.take(3)
p ([1].each + [2]).map { |number| grow(number) }
p (1..3).lazy.map { |number| grow(number) }.eager.first
p Enumerator.new(grow(1)) { |yielder| yielder.yield grow(2) }.size
p [4, 5].each.with_object([]) { |number, list| list << grow(number) }
