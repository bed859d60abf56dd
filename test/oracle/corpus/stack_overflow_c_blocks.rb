# After an overflow, calls out of blocks that C methods hand to each, in methods that were called out of blocks.

def dive(number) = dive(number + 1)

def item(number) = number

def overflow
  dive(0)
rescue SystemStackError
  [3, 1].sort_by { |number| item(number) }
end

def sorted
  overflow
  [2, 1].sort_by { |number| item(number) }
  [2, 1].each_with_index { |number, _index| item(number) }
  [[1, 2], [3]].flat_map { |list| list.min_by { |number| item(number) } }
end

[1].each { p sorted }
[1].each { p([1, 2].lazy.map { |number| item(number) }.first(2)) }
