# Method names that are not ASCII, not UTF-8, operators, empty, or hold blanks and NUL.

class Odd
  def größe = 1

  def 日本(数) = 数

  def +(other) = other
  def -@ = :minus
  def [](key) = key
  def []=(key, value); end
  def !~(_other) = true
  def `(text) = text
  def set? = true
  def set! = true
  def value=(value); end

  define_method("with blank") { 2 }
  define_method("nul\0name") { 3 }
  define_method("bad\xFFname".dup.force_encoding("UTF-8")) { 4 } if RUBY_VERSION < "3.0"
  define_method("latin\xE9".dup.force_encoding("ISO-8859-1")) { 5 }
  define_method("bytes\xFE".b) { 6 }
  define_method("") { 7 }
  define_method("quote\"\\\n") { 8 }
end

odd = Odd.new
p odd.größe, odd.日本(3), odd + 1, -odd, odd[2], odd !~ 1, odd.set?, odd.set!
odd[1] = 2
odd.value = 3
p odd.send("with blank"), odd.send("nul\0name"), odd.send("latin\xE9".dup.force_encoding("ISO-8859-1"))
p odd.send("bytes\xFE".b), odd.send(""), odd.send("quote\"\\\n"), odd.instance_eval { `text` }
