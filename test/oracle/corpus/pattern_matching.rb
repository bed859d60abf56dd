# deconstruct and deconstruct_keys, called by `case/in`; === called by `case/when`.

class Shape
  def initialize(*sides) = @sides = sides

  def deconstruct = sides

  def deconstruct_keys(_keys) = { count: sides.size }

  def sides = @sides

  def self.===(other) = kind?(other)

  def self.kind?(other) = other.instance_of?(self)
end

def describe(value)
  case value
  when Integer then :number
  else
    case value
    in [one] then [:one, one]
    in { count: 2 } then :two
    else :many
    end
  end
end

p describe(1), describe(Shape.new(5)), describe(Shape.new(1, 2)), describe(Shape.new(1, 2, 3)), Shape === Shape.new
