# A thread that ends itself in the middle of its calls.

def work(number)
  finish if number == 3
  work(number + 1)
ensure
  note
end

def finish = Thread.exit

def note = nil

p Thread.new { work(0) }.value
