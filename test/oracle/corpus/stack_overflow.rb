# A recursion that ends in SystemStackError: its frames go without a return, and the program carries on.

def dive(number) = dive(number + 1)

def after = :after

def safe
  dive(0)
rescue SystemStackError
  after
end

puts safe
puts after
