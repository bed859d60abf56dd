# frozen_string_literal: true

require "json"

# Loaded by a random program: writes down which of its methods are really open, as the VM's own backtrace tells it.
#
# A backtrace also holds blocks, rescues and evals. The methods of the program have names that nothing else has, and an
# eval has a file of its own, so a frame of a plain method is one whose label is just such a name. The body
# of a `define_method` looks like a block: it is known by the lines it stands on.
module Probe
  NAMES = /\A(?:[\w:]+[#.])?((?:m|y|z|s|dm|over|probe)_\d+|method_missing|<=>)\z/
  # Names that other classes use, too.
  OWNERS = { "method_missing" => "Ghost", "<=>" => "Ordered" }.freeze
  DEFINED = "block in <class:Made>"

  class << self
    def setup(program, out)
      @program = program
      @bodies = []
      @shadow = defined?(Ratrace::Native) && Ratrace::Native.respond_to?(:shadow)
      @file = File.open(out, File::WRONLY | File::CREAT | File::APPEND) if out
    end

    def body(name, lines)
      @bodies << [name, lines]
    end

    # Called by each probe method, which therefore is the top of the stack. All in one method, because the calls made
    # here are recorded, too.
    def take
      return unless @file

      truth = caller_locations(1).reverse.filter_map do |location|
        next unless location.path == @program
        next location.label[NAMES, 1] unless location.label == DEFINED

        @bodies.find { |_name, lines| lines.cover?(location.lineno) }&.first
      end
      shadow = Ratrace::Native.shadow.map { |pair| pair.map(&:to_s) } if @shadow
      @file.syswrite("#{JSON.generate({ context: Fiber.current.object_id, truth: truth, shadow: shadow })}\n")
    end

    # The program's methods among [owner, method] pairs.
    def own(pairs)
      pairs.filter_map { |owner, name| name if NAMES.match?(name) && (OWNERS[name] || owner) == owner }
    end
  end
end
