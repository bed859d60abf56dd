# A process that kills itself inside its calls.

def outer = [1].each { inner }

def inner
  $stdout.flush
  Process.kill(:KILL, Process.pid)
  sleep
end

puts "last words"
outer
