# Fibers left suspended inside methods and collected, again and again.

def hold(number) = pause(number)

def pause(number) = Fiber.yield(number)

def start_one(number) = Fiber.new { hold(number) }.resume

8.times { |number| start_one(number) }
GC.start
8.times { |number| start_one(number) }
puts start_one(99)
