# fork from inside calls: the child goes on with the stack it was born with.
# sanitizer: no (its allocator does not survive a fork)

def outer = inner { work(1) }

def inner
  pid = fork { child }
  Process.wait(pid)
  yield
end

def child
  work(2)
  [1].each { work(3) }
end

def work(number) = puts(number)

$stdout.sync = true
outer
