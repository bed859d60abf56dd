# throw through several methods, blocks and ensures.

def outer
  catch(:found) do
    middle { |item| throw :found, item if item == 3 }
    :nothing
  end
end

def middle(&block)
  inner(&block)
ensure
  tidy
end

def inner
  [1, 2, 3, 4].each { |item| yield item }
end

def tidy = nil

puts outer
begin
  middle { throw :nobody }
rescue UncaughtThrowError => e
  puts e.class
end
