# Exceptions the VM raises itself: wrong arguments, missing methods, frozen objects, division.

def one(argument) = argument

def attempt
  yield
rescue StandardError => e
  report(e)
end

def report(error) = puts(error.class)

attempt { one }
attempt { one(1, 2) }
attempt { nil.nothing }
attempt { "text".freeze << "more" }
attempt { one(1) / 0 }
attempt { Integer("x") }
attempt { [1].first("a", "b") }
