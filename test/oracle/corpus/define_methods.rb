# define_method: several methods of one block, with arguments, blocks and exceptions.
# scoped: no (define_singleton_method after the start is not found)

class Made
  %i[one two].each { |name| define_method(name) { |number = 1| inner(number) } }
  define_method(:yielder) { |&block| block.call(inner(3)) }
  define_method(:fail) { raise inner("made") }
  define_method(:returner) { [1].each { |item| return inner(item) } }
  define_method(:from_method, instance_method(:one))

  def inner(value) = value
end

made = Made.new
p made.one, made.two(2), made.yielder { |number| made.one(number) }, made.returner, made.from_method(4)
begin
  made.fail
rescue RuntimeError => e
  puts e.message
end
made.define_singleton_method(:own) { inner(5) }
p made.own
