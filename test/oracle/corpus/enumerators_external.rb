# External enumerators, whose each runs in a fiber of its own.

class Countdown
  include Enumerable

  def each
    yield number(2)
    yield number(1)
    self
  end

  def number(value) = value
end

source = Countdown.new.to_enum
puts source.next, source.peek, source.next
begin
  source.next
rescue StopIteration => e
  puts e.result.class
end
p Countdown.new.each_slice(2).to_a, Countdown.new.map { |item| item + 1 }
