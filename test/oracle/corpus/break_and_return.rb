# break and return out of blocks, procs and lambdas.

def breaks
  each_item { |item| break item * 10 if item == 2 }
end

def returns
  each_item { |item| return item * 100 if item == 2 }
  :never
end

def each_item
  [1, 2, 3].each { |item| yield seen(item) }
ensure
  seen(0)
end

def seen(item) = item

def from_lambda
  maker = lambda { |item| return seen(item) }
  maker.call(5) + maker.(6)
end

def from_loop
  loop { break seen(7) }
end

puts breaks, returns, from_lambda, from_loop
