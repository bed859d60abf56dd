# Ten thousand calls of small methods.
# gc_stress: no (10,000 collections for every allocation would take minutes)

def tick(number) = number + 1

def tock(number) = tick(number)

number = 0
number = tock(number) while number < 5000
puts number
