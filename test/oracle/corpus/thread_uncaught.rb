# A thread that dies of an exception, met at join.

def fall = raise(RangeError, "fell")

def carry
  Thread.new do
    Thread.current.report_on_exception = false
    fall
  end.join
rescue RangeError => e
  caught(e)
end

def caught(error) = error.message

puts carry
