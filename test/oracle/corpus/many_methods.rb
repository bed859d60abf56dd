# Several hundred methods, each called a few times.
# gc_stress: no (hundreds of definitions, each many allocations)

class Many
  300.times { |number| define_method("m#{number}") { number } }
  class_eval(Array.new(300) { |number| "def n#{number} = m#{number}" }.join("\n"))
end

many = Many.new
puts (0...300).sum { |number| many.public_send("n#{number}") }
