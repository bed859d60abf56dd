# A thread that still waits inside a method when the program ends.

def wait_for(queue) = enter { queue.pop }

def enter = yield

queue = Queue.new
thread = Thread.new { wait_for(queue) }
Thread.pass until queue.num_waiting == 1
puts "bye"
