# A recording stopped inside one call and started again inside another.
# c_calls: no (it starts its second recording without them)

def outer
  work(1)
  stop_recording
  work(2)
  start_recording { work(3) }
  work(4)
end

def stop_recording
  Ratrace.stop if defined?(Ratrace)
end

def start_recording
  Ratrace.start(out_dir: ENV.fetch("ORACLE_OUT_DIR", ".")) if defined?(Ratrace)
  yield
end

def work(number) = number

p outer, work(5)
