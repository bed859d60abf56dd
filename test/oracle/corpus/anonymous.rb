# Anonymous classes and modules, named late or never.

anonymous = Class.new do
  def self.build = new

  def run = inner

  def inner = :inner
end
mixin = Module.new { def mixed = run }
anonymous.include(mixin)
p anonymous.build.mixed
Later = Class.new { def early = :early }
p Later.new.early
holder = Module.new
holder.const_set(:Nested, Class.new { def nested = :nested })
p holder::Nested.new.nested
object = anonymous.new
def object.own = run
p object.own
Struct.new(:field) { def doubled = field * 2 }.new(2).then { |value| p value.doubled }
