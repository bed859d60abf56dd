# BasicObject: no class, no inspect, method_missing for everything.

class Bare < BasicObject
  def call_me = me_too

  def me_too = 1

  def method_missing(name, *) = [name, call_me]

  def self.make = new
end

bare = Bare.make
p bare.call_me, bare.whatever(1)
def bare.own = call_me
p bare.own
p bare.instance_eval { me_too }
