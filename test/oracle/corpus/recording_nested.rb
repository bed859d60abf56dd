# A recording started while one is running is refused or ignored; the first goes on.

def work = inner

def inner = :inner

def nested
  return work unless defined?(Ratrace) && Ratrace.recording?

  begin
    Ratrace.start(out_dir: ENV.fetch("ORACLE_OUT_DIR", "."))
  rescue StandardError
    refused
  end
  work
end

def refused = nil

work
p nested
