# frozen_string_literal: true

module Ratrace
  # What a scoped recording traces: methods by the file they are defined in, methods by name. Frozen.
  #
  #   Trace.new(files: ["app/**/*.rb"], methods: ["Billing::*#charge", "Foo.bar"])
  #
  # In a file glob a star crosses slashes, and "**/" may stand for nothing. A method is "Owner#name", or "Owner.name" for
  # a method of the class or module itself; Owner is the class or module that defines it, and in both a star stands for
  # any characters.
  class Trace
    METHOD = /\A(?<owner>[A-Z*][\w:*]*?)(?<mark>[#.])(?<name>[^\s]+)\z/

    # @return [Array<String>]
    attr_reader :files, :methods

    # @param files [Array<String>] as they were given
    # @param methods [Array<String>]
    # @param globs [Array<String>] what the files' paths are matched with
    # @param foreign [Array<String>] globs of files that are not traced although they match
    def initialize(files: [], methods: [], globs: files, foreign: [])
      @files = files
      @methods = methods
      @globs = globs.flat_map { |glob| glob.include?("**/") ? [glob, glob.sub("**/", "")] : [glob] }.freeze
      @foreign = foreign
      @patterns = methods.map { |text| pattern(text) }.freeze
      freeze
    end

    # As in RATRACE_TRACE.
    def to_s
      (files + methods).join(",")
    end

    # @return [String] the same, perhaps cut to that many bytes
    def summary(bytes)
      text = to_s.scrub
      text.bytesize <= bytes ? text : "#{text.byteslice(0, bytes - 3).scrub("")}..."
    end

    def file?(path)
      @globs.any? { |glob| File.fnmatch?(glob, path) } && @foreign.none? { |glob| File.fnmatch?(glob, path) }
    end

    # Is the method one of those named?
    # @param owner [String] its class or module
    def method?(owner, singleton, name)
      @patterns.any? { |of, own, named| own == singleton && of.match?(owner) && named.match?(name) }
    end

    # May the class or module define a method that is named?
    def owner?(owner)
      @patterns.any? { |of, _, _| of.match?(owner) }
    end

    # The names that hold no star: [owner, singleton, name].
    def exact_methods
      methods.reject { |text| text.include?("*") }.map { |text| METHOD.match(text).values_at(:owner, :mark, :name) }
             .map { |owner, mark, name| [owner, mark == ".", name] }
    end

    # May code that reads like this define a method that is named? A text that holds no part of such a name does not.
    def named_in?(source)
      methods.any? { |text| METHOD.match(text)[:name].split("*").all? { |part| source.include?(part.b) } }
    end

    private

    def pattern(text)
      parts = METHOD.match(text)
      [wild(parts[:owner]), parts[:mark] == ".", wild(parts[:name])]
    end

    def wild(text)
      /\A#{text.split("*", -1).map { |part| Regexp.escape(part) }.join(".*")}\z/m
    end
  end
end
