# Fiber#transfer instead of resume and yield.

def ping(other, log)
  log << mark(:ping)
  other.transfer
  log << mark(:pong)
end

def mark(text) = text

log = []
main = Fiber.current
worker = Fiber.new do
  ping(main, log)
  main.transfer
end
worker.transfer
log << mark(:main)
worker.transfer
p log
