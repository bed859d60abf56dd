# Methods redefined while running, and between calls.
# scoped: no (define_method in a block that runs after the start is not found)

class Changing
  def value = :first

  def change
    before = value
    self.class.class_eval { def value = :second }
    [before, value]
  end

  def rewrite
    self.class.class_eval do
      def rewrite = :new_one
    end
    rewrite
  end
end

changing = Changing.new
p changing.change, changing.value, changing.rewrite, changing.rewrite
10.times do |number|
  Changing.define_method(:value) { number }
  changing.value
end
p changing.value
