# Mutex, ConditionVariable, Monitor and thread-locals around calls.

require "monitor"

class Box
  include MonitorMixin

  def put(item) = synchronize { @item = check(item) }

  def check(item) = synchronize { item }
end

def locked(mutex) = mutex.synchronize { inside }

def inside = Thread.current[:inside] = 1

mutex = Mutex.new
p Thread.new { locked(mutex) }.value, locked(mutex), Box.new.put(3)
