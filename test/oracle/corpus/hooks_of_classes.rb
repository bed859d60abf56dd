# Hooks Ruby calls itself: inherited, included, method_added, const_missing, singleton_method_added.

module Watch
  def inherited(child)
    super
    note(:inherited)
  end

  def method_added(name)
    super
    note(name)
  end

  def singleton_method_added(name)
    super
    note(name)
  end

  def const_missing(name) = note(name)

  def note(what) = (@notes ||= []) << what
end

module Mixin
  def self.included(base) = base.mixed

  def self.extended(base) = base

  def self.prepended(base) = base
end

class Watched
  extend Watch

  def self.mixed = note(:mixed)

  def one = nil

  def self.two = nil
  include Mixin
  prepend Mixin
end

class Heir < Watched; end
p Watched::Missing
Object.new.extend(Mixin)
