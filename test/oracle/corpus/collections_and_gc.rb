# Garbage collection and compaction in the middle of calls.

def make(number) = Array.new(number) { |item| "item #{item}" }

def collect
  GC.start
  GC.compact if GC.respond_to?(:compact)
  ObjectSpace.garbage_collect
  make(2)
end

def nested(number) = number.zero? ? collect.size : nested(number - 1)

p nested(5), make(3).size
p ObjectSpace.each_object(Class).first.class, nested(1)
object = Object.new
def object.own = GC.start
object.own
p make(1)
