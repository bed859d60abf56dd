# An overflow that runs ensure blocks on its way out.

def dive(number) = dive(number + 1)

def close = :closed

def guarded(number)
  number.zero? ? dive(0) : guarded(number - 1)
ensure
  close
end

begin
  guarded(5)
rescue SystemStackError
  puts close
end
