# alias, alias_method and aliases of aliases: called by one name, defined by another.

class Named
  def original = inner

  alias second original
  alias_method :third, :second

  def inner = :inner

  alias old_inner inner

  def inner = [:new, old_inner]

  class << self
    def build = new
    alias make build
  end
end

named = Named.make
p named.original, named.second, named.third, Named.build.old_inner
$alias_output = named.method(:third).original_name
p $alias_output
