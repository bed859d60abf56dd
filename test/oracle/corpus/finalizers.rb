# Finalizers that run methods when the program ends.

def finalize(number) = puts("final #{number}")

def keep(number)
  object = Object.new
  ObjectSpace.define_finalizer(object, proc { number })
  object
end

kept = Array.new(2) { |number| keep(number) }
p kept.size
finalize(1)
