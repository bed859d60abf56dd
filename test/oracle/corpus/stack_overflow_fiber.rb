# An overflow in a fiber and in a thread, caught inside and outside.

def dive(number) = dive(number + 1)

def inside
  dive(0)
rescue SystemStackError
  answer
end

def answer = 42

puts Fiber.new { inside + answer }.resume
puts Thread.new { inside }.value
begin
  Fiber.new { dive(0) }.resume
rescue SystemStackError
  puts answer
end
