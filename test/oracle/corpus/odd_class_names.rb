# Class names that are not ASCII, deep, private, replaced or removed.

module Über
  class Straße
    def fahren = Innen.new.halt

    class Innen
      def halt = :halt
    end
    private_constant :Innen
  end
end

p Über::Straße.new.fahren
Alias = Über::Straße
p Alias.new.fahren
first = Class.new { def who = :first }
Swapped = first
Object.send(:remove_const, :Swapped)
Swapped = Class.new { def who = :second }
p first.new.who, Swapped.new.who
