# Generators given up half way.

def values(yielder)
  yielder << value(1)
  yielder << value(2)
  yielder << value(3)
end

def value(number) = number

def first_of(generator) = generator.next

5.times { first_of(Enumerator.new { |yielder| values(yielder) }) }
generator = Enumerator.new { |yielder| values(yielder) }
p generator.next, generator.next
p generator.take(1)
