# A define_method body that calls itself, and siblings of the same block, through blocks.

class Made
  [1, 2, 3].each do |step|
    define_method("down#{step}") do |number|
      next number if number <= 0

      [number].sum { |item| public_send("down#{(step % 3) + 1}", item - step) }
    end
  end
end

p Made.new.down1(12)
