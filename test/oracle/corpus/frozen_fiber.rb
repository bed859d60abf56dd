# Frozen fibers and threads: a recorder that hangs its state on them must cope.

def step(number) = number + 1

fiber = Fiber.new { Fiber.yield(step(1)) + step(2) }.freeze
p fiber.resume, fiber.resume(1)
thread = Thread.new { Thread.current.freeze && step(3) }
p thread.value
p Fiber.new { Fiber.current.freeze && step(4) }.resume
