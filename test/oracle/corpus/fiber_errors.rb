# Fibers that end by an exception, Fiber#raise, and resuming a dead one.

def fail_inside = raise(IOError, "inside")

def wait
  Fiber.yield 1
rescue EncodingError => e
  handled(e)
end

def handled(error) = error.message

def guard
  yield
rescue StandardError => e
  puts e.class
end

broken = Fiber.new { fail_inside }
guard { broken.resume }
guard { broken.resume }
waiting = Fiber.new { wait }
waiting.resume
puts waiting.raise(EncodingError, "told")
