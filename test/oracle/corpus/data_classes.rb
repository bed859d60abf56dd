# Data, where there is one: positional and keyword construction, with, methods of its own.

if defined?(Data) && Data.respond_to?(:define)
  Amount = Data.define(:value, :unit) do
    def initialize(value:, unit: "m") = super(value: check(value), unit: unit)

    def check(value) = Float(value)

    def to_s = "#{value}#{unit}"
  end
  puts Amount.new(1), Amount.new(value: 2, unit: "s"), Amount.new(3).with(value: 4)
else
  def without_data = :no_data
  puts without_data
end
