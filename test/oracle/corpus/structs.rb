# Struct: accessors, keyword_init, methods in the block, comparison and hashing from C.

Point = Struct.new(:x, :y) do
  def length = square(x) + square(y)

  def square(number) = number * number

  def to_s = "point #{length}"
end
Pair = Struct.new(:left, :right, keyword_init: true)

point = Point.new(1, 2)
point.x = 3
puts point, point == Point.new(3, 2), { point => 1 }[Point.new(3, 2)]
pair = Pair.new(left: point, right: 2)
p pair.left.length, pair.to_h.keys
