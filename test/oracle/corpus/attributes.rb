# attr_reader, attr_writer and attr_accessor beside methods that do the same.

class Attributed
  attr_accessor :fast
  attr_reader :read

  def initialize = @read = slow

  def slow = @slow ||= 1

  def slow=(value)
    @slow = value
  end
end

attributed = Attributed.new
attributed.fast = attributed.slow
attributed.slow += attributed.fast
p attributed.slow, attributed.read
