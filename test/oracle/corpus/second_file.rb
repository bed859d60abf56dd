# require, require_relative, load and autoload of a second file.

def work = :work

require_relative "support/second"
p Second.new.run
autoload :Third, File.join(__dir__, "support/third.rb")
p Third.run
load File.join(__dir__, "support/fourth.rb")
p fourth, work
