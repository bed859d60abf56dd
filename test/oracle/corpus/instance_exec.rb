# instance_exec, class_exec and instance_eval with blocks that call methods of both selves.

class Builder
  def build(&block) = instance_exec(1, &block)

  def part(number) = number + 1
end

def outside(number) = number * 10

p Builder.new.build { |number| part(number) }
p Builder.class_exec { new.build { |number| part(part(number)) } }
p outside(Builder.new.instance_eval { part(5) })
