# Fibers that hand control to and fro, each with a stack of its own.

def producer(name)
  3.times { |turn| give("#{name}#{turn}") }
  :end
end

def give(text) = Fiber.yield(text)

def take(fiber) = fiber.resume

one = Fiber.new { producer("a") }
two = Fiber.new { producer("b") }
4.times { puts take(one), take(two) }
