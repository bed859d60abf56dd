# Short-lived anonymous classes whose names and entries are collected and their addresses used again.
# scoped: no (define_method in a block that runs after the start is not found)

def run_one(number)
  made = Class.new { define_method(:value) { number } }
  object = made.new
  def object.own = value
  object.own
end

20.times do |number|
  run_one(number)
  GC.start if (number % 10).zero?
end
puts run_one(7)
