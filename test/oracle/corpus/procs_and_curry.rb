# to_proc, Symbol#to_proc, curry, composition, lambdas and numbered parameters.

def add(one, two, three) = one + two + three

def twice(number) = number * 2

def yielder = yield(1, 2)

p method(:add).curry[1][2][3], method(:add).to_proc.curry.(1, 2).(3)
p (method(:twice) >> method(:twice)).call(2), (method(:twice) << proc { |number| twice(number) }).call(3)
p [1, 2].map(&method(:twice)), %w[a b].map(&:upcase), yielder { |one, two| twice(one + two) }
p [3].each { twice(_1) }, lambda { |number| twice(number) } === 4
