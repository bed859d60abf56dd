# frozen_string_literal: true

require "json"
require_relative "node"
require_relative "session"

module Oracle
  # Builds call trees from the events of one Recorder file.
  #
  # TracePoint is silent when a SystemStackError, an abandoned continuation or another TracePoint throws frames away. So
  # before each event the open calls are held against the frames that were really there: a call whose frame is
  # gone, or whose place another frame has taken, is over.
  class Replay
    # An open call, the depth of its frame (1 = bottom) and the label of that frame.
    Open = Struct.new(:node, :depth, :label)

    attr_reader :sessions

    def initialize(file)
      @sessions = []
      File.foreach(file, encoding: Encoding::UTF_8) { |line| apply(JSON.parse(line)) }
    end

    private

    def apply(event)
      return start if event["type"] == "start"

      # The child of a fork has no start line.
      start if @sessions.empty?
      @stack = @stacks[event["context"]]
      @depth, @labels = event.values_at("depth", "labels")
      send(event["type"], event)
    end

    def start
      @sessions << Session.new
      @stacks = Hash.new { |stacks, context| stacks[context] = [] }
    end

    def call(event)
      drop_dead
      drop_deeper(hidden?(event) ? @depth : @depth - 1)
      push(event, @depth, @labels[@depth - 1])
    end

    # From 3.4 on a backtrace hides the inner ones of the VM's own Ruby frames: they share their caller's depth.
    def hidden?(event)
      event["file"].start_with?("<internal:")
    end

    # The frame that returns is still on top.
    define_method(:return) do |event|
      drop_dead
      pop(event, @depth)
    end

    # The frame of the C function is not there yet.
    def c_call(event)
      drop_dead
      push(event, @depth + 1, nil)
    end

    # The frame of the C function is gone already or, when an exception or a throw ends it, still there.
    def c_return(event)
      drop_deeper(@depth + 1)
      return if pop(event, @depth + 1)

      drop_deeper(@depth)
      pop(event, @depth)
    end

    def push(event, depth, label)
      node = Node.from(event)
      session = @sessions.last
      (@stack.last&.node || session.root(event["context"])).children << node
      @stack << Open.new(node, depth, label)
      session.called(event["context"], @stack.map(&:node)) if event["method"].start_with?("probe_")
    end

    # A return that is not the top's was of a frame open at start, or a second one by a continuation.
    def pop(event, depth)
      top = @stack.last
      return false unless top&.depth == depth && top.node.identity.first(2) == event.values_at("owner", "method")

      @stack.pop.node.returned = true
    end

    def drop_deeper(depth)
      @stack.pop while @stack.any? && @stack.last.depth > depth
    end

    def drop_dead
      dead = @stack.index { |open| !alive?(open) }
      @stack.slice!(dead..) if dead
    end

    def alive?(open)
      return false if open.depth > @depth

      label = @labels[open.depth - 1]
      return true unless label
      return label == open.label if open.label

      label == open.node.method || label.end_with?("##{open.node.method}", ".#{open.node.method}")
    end
  end
end
