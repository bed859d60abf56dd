# C functions that call back: Comparable, sort, sort_by, min, max, uniq, bsearch, inject, ranges.
# sanitizer: no (its qsort_r compares neighbours once more)

class Version
  include Comparable

  attr_reader :number

  def initialize(number) = @number = number

  def <=>(other) = compare(other.number)

  def compare(other) = number <=> other

  def succ = Version.new(number + 1)

  def hash = number.hash

  def eql?(other) = self == other
end

versions = [3, 1, 2].map { |number| Version.new(number) }
p versions.min.number, versions.max.number, versions.sort.map(&:number), versions[0] > versions[1]
p versions.sort_by { |version| -version.number }.first.number, versions[0].clamp(versions[1], versions[2]).number
p (versions[1]..versions[0]).to_a.size, versions[2].between?(versions[1], versions[0])
p versions.inject { |left, right| left > right ? left : right }.number, (versions + [Version.new(3)]).uniq.size
