# Threads that run side by side, joined by a queue.

def serve(queue, number)
  while (item = queue.pop)
    answer(item + number)
  end
  number
end

def answer(number) = number * 2

queues = Array.new(3) { Queue.new }
threads = queues.each_with_index.map { |queue, number| Thread.new { serve(queue, number) } }
5.times { |item| queues.each { |queue| queue << item } }
queues.each { |queue| queue << nil }
p threads.map(&:value)
