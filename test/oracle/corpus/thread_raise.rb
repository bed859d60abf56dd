# Thread#raise into a thread that waits.
# c_calls: no (it spins until another thread waits, some number of times)

class Poke < StandardError; end

def wait_for(queue)
  queue.pop
rescue Poke => e
  poked(e)
end

def poked(error) = error.message

queue = Queue.new
thread = Thread.new { wait_for(queue) }
Thread.pass until queue.num_waiting == 1
thread.raise(Poke, "wake up")
puts thread.value
