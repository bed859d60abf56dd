# Methods of modules: self., module_function, extend self, class << self, Class methods inherited.

module Tool
  def self.direct = helper

  module_function

  def helper = :helped
end

module Selfish
  extend self

  def shared = inner

  def inner = :inner
end

class Parent
  class << self
    def create = tag(name)

    private

    def tag(text) = text
  end
end

class Child < Parent; end

p Tool.direct, Tool.helper, Selfish.shared, Parent.create, Child.create
