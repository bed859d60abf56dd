# Singleton methods of ordinary objects, of main, of strings and of singleton classes.

def self.of_main = :main

text = +"text"
def text.twice = inner * 2

def text.inner = self

class Plain; end

plain = Plain.new
class << plain
  def own = self.class.name

  class << self
    def of_singleton_class = :deep
  end
end

p of_main, text.twice, plain.own, plain.singleton_class.of_singleton_class
