# eval, class_eval, instance_eval with and without a file, and methods defined in them.

def helper = :helped

def evaluated = eval("[1].each { helper }; helper")

p evaluated, eval("helper", binding, "given.rb", 10), binding.eval("helper")
eval("def from_eval = helper", TOPLEVEL_BINDING, "made_up.rb", 7)
p from_eval
String.class_eval("def shouted = upcase_it\ndef upcase_it = upcase", "strings.rb", 3)
p "a".shouted
Object.class_eval { def from_block = helper }
p from_block
p Object.new.instance_eval("helper")
