# A Ractor: its calls are not the main Ractor's, and the main Ractor's go on.

def work(number) = number * 2

ractor = Ractor.new(4) { |number| work(number) }
work(1)
p ractor.respond_to?(:take) ? ractor.take : ractor.value
p work(2)
