# A throw finds no catch on the other side of a fiber.

def throw_inside = throw(:out, 1)

def enter = Fiber.new { attempt }.resume

def attempt
  throw_inside
rescue UncaughtThrowError
  told
end

def told = :not_here

p catch(:out) { enter }
p catch(:out) { throw_inside }
