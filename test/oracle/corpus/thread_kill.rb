# Threads killed while they wait: ensure runs, frames return.
# c_calls: no (it spins until another thread waits, some number of times)

def wait_for(queue)
  queue.pop
ensure
  leave
end

def leave = nil

def sleeping?(thread) = thread.stop?

queue = Queue.new
threads = Array.new(2) { Thread.new { [1].each { wait_for(queue) } } }
Thread.pass until queue.num_waiting == 2
threads.each(&:kill).each(&:join)
puts threads.none?(&:alive?), sleeping?(threads.first)
