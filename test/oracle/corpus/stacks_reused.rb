# Fibers and threads one after the other, each on the machine stack of the one before, with no call in between.

def work(number)
  number.odd? ? inner(number) : number
end

def inner(number)
  number + 1
end

5.times { |number| Fiber.new { work(number) }.resume }
5.times { |number| Thread.new { work(number) }.join }
[1, 2].each do |number|
  one = Fiber.new { work(number) && Fiber.yield && inner(number) }
  one.resume
  Fiber.new { work(number) }.resume
  one.resume
end
