# Timeout around a wait inside a method.

require "timeout"

def slow = sleep

def impatient
  Timeout.timeout(0.3) { slow }
rescue Timeout::Error => e
  late(e)
end

def late(error) = error.class

def quick = Timeout.timeout(5) { :done }

puts impatient, quick
