# Classes that override what a recorder might ask: name, to_s, inspect, class, ==, hash, and raise.

class Hostile
  class << self
    def name = raise("name")
    def to_s = raise("to_s")
    def inspect = raise("inspect")
    def hash = raise("hash")
    def ==(_other) = raise("==")
    def class = raise("class")
    def singleton_class = raise("singleton_class")
    def superclass = raise("superclass")
    def allocate_one = allocate
  end

  def name = raise("name")
  def to_s = raise("to_s")
  def inspect = raise("inspect")
  def class = raise("class")
  def hash = raise("hash")
  def ==(_other) = raise("==")
  def eql?(_other) = raise("eql?")
  def singleton_class = raise("singleton_class")
  def method(_name) = raise("method")
  def object_id = raise("object_id")
  def respond_to?(*) = raise("respond_to?")
  def work = fine

  def fine = :fine
end

p Hostile.new.work, Hostile.allocate_one.fine
hostile = Hostile.new
def hostile.own = work
p hostile.own
begin
  hostile.inspect
rescue RuntimeError => e
  puts e.message
end
