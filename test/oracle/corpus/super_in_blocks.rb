# super from blocks, define_method and singleton methods.

class Parent
  def run(number) = number

  def self.make(number) = [self.name, number]
end

class Child < Parent
  def run(number) = [1, 2].sum { |item| super(item * number) }

  define_method(:go) { |number| run(number) }

  def self.make(number) = super(number + 1)
end

child = Child.new
def child.run(number) = super + 100
p child.run(3), child.go(2), Child.make(1), Class.new(Child).make(5)
