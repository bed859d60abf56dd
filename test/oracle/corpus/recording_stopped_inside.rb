# A recording stopped inside a call: what follows is not in it.

def outer
  work(1)
  stop_recording { work(2) }
  work(3)
end

def stop_recording
  Ratrace.stop if defined?(Ratrace)
  yield
end

def work(number) = number

p outer, work(4)
