# Core methods replaced by the program: Integer#+, String#==, Array#each, Kernel#puts, Symbol#to_proc stay harmless.

class Integer
  alias plain_plus +
  def +(other) = counted(other)

  def counted(other) = plain_plus(other)
end

module Kernel
  alias plain_puts puts
  def puts(*texts) = plain_puts(*texts)
end

class Array
  alias plain_map map
  def map(&) = plain_map(&)
end

result = 1 + 2
text = [1, 2].map { |number| number + 1 }.join(",")
class Integer
  alias + plain_plus
end
class Array
  alias map plain_map
end
puts result, text
