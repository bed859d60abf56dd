# Objects that take the place of $stdout and $stderr, and a Warning.warn of one's own.

class Collector
  def initialize = @lines = []

  def write(*texts) = texts.each { |text| keep(text) }.size

  def keep(text) = @lines << text

  def lines = @lines
end

module Warning
  def self.warn(message, **) = $collector.keep(message)
end

$collector = Collector.new
$stdout = $collector
puts "one", "two"
warn "three"
$stdout = STDOUT
p $collector.lines.map(&:strip).reject(&:empty?)
