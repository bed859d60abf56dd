# callcc: leaving calls without a return, and coming back into calls that had returned.
# c_calls: no (a C function that is entered once and left twice has no one truth)

begin
  verbose = $VERBOSE
  $VERBOSE = nil
  require "continuation"
ensure
  $VERBOSE = verbose
end

def escape = callcc { |out| deep(out) }

def deep(out) = deeper(out)

def deeper(out) = out.call(:escaped)

def come_back
  callcc { |again| $again = again }
  mark
end

def mark = $count = $count.to_i + 1

p escape
p come_back
$again.call if $count < 3
p mark
