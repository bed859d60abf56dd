# fork without a block: the child returns through the frames of its parent, then ends by exit!.
# sanitizer: no (its allocator does not survive a fork)

def outer
  pid = inner
  work(pid ? :parent : :child)
  pid
end

def inner = fork

def work(who) = who

pid = outer
if pid
  Process.wait(pid)
  puts "parent #{$?.exitstatus}"
else
  work(:last)
  exit!(work(7))
end
