# method_missing and respond_to_missing?.

class Ghost
  def method_missing(name, *arguments)
    return super unless known?(name)

    [name, *arguments]
  end

  def respond_to_missing?(name, include_all = false) = known?(name) || super

  def known?(name) = name.start_with?("get_")
end

ghost = Ghost.new
p ghost.get_this(1), ghost.respond_to?(:get_that), ghost.method(:get_other).call
begin
  ghost.unknown
rescue NoMethodError => e
  puts e.name
end
