# prepend, include, extend and super through all of them.

module First
  def greet = "first #{super}"
end

module Second
  def greet = "second #{super()}"
end

class Base
  def greet = "base"
end

class Derived < Base
  include Second
  prepend First

  def greet = "derived #{super}"
end

derived = Derived.new
puts derived.greet
derived.extend(Module.new { def greet = "extended #{super}" })
puts derived.greet
puts Base.new.extend(Second).greet
