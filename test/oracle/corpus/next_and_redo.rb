# next and redo in blocks.

def double(number) = number * 2

def nexts
  [1, 2, 3].map do |item|
    next double(0) if item == 2

    double(item)
  end
end

def redoes
  tries = 0
  [1, 2].each do |item|
    tries += 1
    redo if double(tries) == 2
    double(item)
  end
  tries
end

p nexts, redoes
