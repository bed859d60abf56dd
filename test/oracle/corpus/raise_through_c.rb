# Exceptions that pass through C functions and blocks.

def stop_at(number)
  [1, 2, 3].each_with_index { |item, _index| [item].map { |each| check(each, number) } }
rescue KeyError => e
  e.message
end

def check(item, number)
  raise KeyError, "found" if item == number

  item
end

puts stop_at(2)
p stop_at(9)
{ a: 1 }.each_pair { |_key, value| puts check(value, 3) }
