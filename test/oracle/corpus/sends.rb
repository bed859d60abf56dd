# send, __send__, public_send, Method#call, UnboundMethod#bind_call.

class Target
  def open(number) = hidden(number)

  private

  def hidden(number) = number + 1
end

target = Target.new
p target.send(:hidden, 1), target.__send__(:open, 2), target.public_send(:open, 3)
p target.method(:open).call(4), Target.instance_method(:open).bind_call(target, 5), target.method(:open).unbind.bind(target)[6]
p [7, 8].map(&target.method(:open))
