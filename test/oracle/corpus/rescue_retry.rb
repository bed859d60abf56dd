# raise, rescue, retry, else and ensure.
# public_path: no (a retry of a method's first instruction looks like a recursive call without frame words)

class Flaky
  def initialize = @left = 3

  def try
    work
  rescue ArgumentError
    retry if again?
    :gave_up
  else
    :worked
  ensure
    cleanup
  end

  def work
    raise ArgumentError, "left" if @left.positive?

    :done
  end

  def again? = (@left -= 1) >= 0

  def cleanup = @cleaned = true
end

puts Flaky.new.try
