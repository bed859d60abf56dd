# A stack some hundred frames deep that returns all the way.

def down(number) = number.zero? ? 0 : 1 + down(number - 1)

puts down(400)
