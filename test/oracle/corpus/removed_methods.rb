# Methods removed or undefined while they are on the stack.

class Shrinking
  def leave
    self.class.remove_method(:leave)
    GC.start
    inner
  end

  def vanish
    self.class.undef_method(:vanish)
    [1].each { inner }
  end

  def inner = :inner
end

shrinking = Shrinking.new
p shrinking.leave, shrinking.vanish, shrinking.respond_to?(:leave)
Object.send(:remove_const, :Shrinking)
GC.start
p shrinking.inner
