# frozen_string_literal: true

require "json"
require_relative "names"

module Oracle
  # Records every method call of this process with TracePoint, the slow and obvious way.
  #
  # One JSON line per event, written at once, so `exit!` and `exec` lose nothing. Each line says what the event was, on
  # which fiber, and how the stack looked: its depth and the labels of its frames, bottom first. What the events mean is worked out
  # afterwards, by Replay.
  #
  # A fiber is known by its object_id: unlike its address that is never given out twice.
  class Recorder
    # Labels are written of this many frames, from the bottom; of a deeper stack only its depth is told.
    LABELS = 200
    # This method and the block of the TracePoint stand on top of the frames of the program.
    OWN_FRAMES = 2
    RUBY_EVENTS = %i[call return].freeze
    C_EVENTS = %i[c_call c_return].freeze
    OBJECT_ID = Kernel.instance_method(:object_id)

    def initialize(path, c_calls: false)
      @path = path
      @names = Names.new
      @trace = TracePoint.new(*RUBY_EVENTS, *(c_calls ? C_EVENTS : [])) { |point| note(point) }
    end

    def start
      return if recording?

      write({ type: "start" })
      @trace.enable
    end

    def stop
      @trace.disable
    end

    def recording?
      @trace.enabled?
    end

    private

    def note(point)
      frames = caller_locations(OWN_FRAMES)
      write({ type: point.event, context: OBJECT_ID.bind_call(Fiber.current), **method_of(point),
              depth: frames.size, labels: frames.last(LABELS).reverse.map { |frame| @names.clean(frame.label) } })
    end

    def method_of(point)
      klass = point.defined_class
      {
        owner: @names.owner(klass, point.self),
        method: @names.clean(point.method_id),
        called: @names.clean(point.callee_id),
        kind: kind(point.event, klass),
        file: @names.clean(point.path),
        line: point.lineno
      }
    end

    def kind(event, klass)
      text = @names.singleton?(klass) ? "singleton" : "instance"
      C_EVENTS.include?(event) ? "c_#{text}" : text
    end

    # A forked child writes a file of its own, next to its parent's.
    def write(event)
      unless @pid == $$
        @pid = $$
        @file = File.open("#{@path}.#{@pid}", File::WRONLY | File::CREAT | File::APPEND, 0o600)
      end
      @file.syswrite("#{JSON.generate(event)}\n")
    end
  end
end
