# exit! in the middle of calls: no ensure, no handlers.

def outer = [1].each { inner }

def inner
  $stdout.puts "going"
  $stdout.flush
  exit!(5)
ensure
  puts "never"
end

at_exit { puts "never" }
outer
