# A signal handler that runs in the middle of calls, and one that raises.

def handle = @handled = true

def wait
  Process.kill(:USR1, Process.pid)
  sleep(0.001) until @handled
  :handled
end

def interrupted
  Process.kill(:INT, Process.pid)
  sleep
rescue Interrupt
  handle
end

trap(:USR1) { handle }
puts wait, interrupted
