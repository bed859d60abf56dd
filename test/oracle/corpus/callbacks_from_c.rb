# to_s, to_str, to_ary, coerce, each, <=>, hash and == called by C functions.

class Texty
  def to_s = "texty #{part}"

  def to_str = to_s

  def to_ary = [part, part]

  def part = :part

  def coerce(other) = [other, value]

  def value = 10

  def to_proc = proc { |item| item + value }
end

texty = Texty.new
puts "#{texty}", "a " + texty, 5 + texty
left, right = texty
p left, right, [1, 2].map(&texty), [[1, texty]].flatten.size
p Hash.new { |hash, key| hash[key] = texty.part }[:x]
p "a-b".gsub(/-/) { "#{texty.part}" }, format("%s", texty)
