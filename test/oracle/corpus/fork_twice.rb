# A fork in a fork, and a fork from a thread.
# sanitizer: no (its allocator does not survive a fork)

def work(text) = text

def fork_and_wait
  pid = fork do
    yield
    work(:end)
  end
  Process.wait(pid)
end

fork_and_wait { fork_and_wait { work(:grandchild) } }
Thread.new { fork_and_wait { work(:of_thread) } }.join
puts work("done")
