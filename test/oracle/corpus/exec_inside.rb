# exec in the middle of calls: the process goes on as another program.

def outer = inner

def inner
  $stdout.flush
  exec("echo", "replaced")
end

puts "before"
outer
