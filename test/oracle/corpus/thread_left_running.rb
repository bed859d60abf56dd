# A thread that still waits inside a method when the program ends.
# c_calls: no (how often it asks for num_waiting is up to the scheduler)

def wait_for(queue) = enter { queue.pop }

def enter = yield

queue = Queue.new
thread = Thread.new { wait_for(queue) }
Thread.pass until queue.num_waiting == 1
puts "bye"
