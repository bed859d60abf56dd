# frozen_string_literal: true

require_relative "names"
require_relative "node"
require_relative "session"

module Oracle
  # Builds call trees from the events of one recording of the product, and notes every event that cannot be true:
  # a return with nothing open, more frames unwound than there are, a snapshot that is not the stack.
  class RecordingReplay
    attr_reader :session, :contradictions, :unmatched

    # +lossy+: events may be missing, so a snapshot may differ from the stack, and replaces it.
    def initialize(events, lossy: false)
      @lossy = lossy
      @names = Names.new
      @session = Session.new
      @stacks = Hash.new { |stacks, context| stacks[context] = [] }
      @known = {}
      @contradictions = []
      @unmatched = 0
      events.each { |event| apply(event.transform_keys(&:to_s)) }
    end

    private

    def apply(event)
      @event = event
      @context = event["context"]
      @stack = @stacks[@context]
      case event["type"].to_s
      when "call", "c_call" then call(event)
      when "return" then pop(c: false)
      when "c_return" then pop(c: true)
      when "unwind" then unwind(event["count"])
      when "unmatched" then @unmatched += 1
      when "snapshot" then snapshot(event)
      when "end" then finish
      end
    end

    def call(event)
      @known[@context] = true
      push(node(event))
      @session.called(@context, @stack.dup) if @stack.last.method.start_with?("probe_")
    end

    def push(node)
      (@stack.last || @session.root(@context)).children << node
      @stack << node
    end

    def pop(c:)
      return contradict("return with nothing open") if @stack.empty?

      top = @stack.pop
      contradict("#{@event["type"]} of #{top.identity}") unless top.base || top.c? == c
      top.returned = true
    end

    def unwind(count)
      contradict("unwind of #{count} of #{@stack.size} frames") if count > @stack.size
      @stack.pop(count)
    end

    def snapshot(event)
      frames = event["frames"].map { |frame| node(frame.transform_keys(&:to_s)) }
      contradict("snapshot with base #{event["base"]}") unless base_below?(frames, event["base"])
      same = @stack.zip(frames).take_while { |open, frame| open.identity == frame&.identity }.size
      changed = same < frames.size || same < @stack.size
      told = @lossy || event["reason"] == "repair" # frames that vanished without an event are told this way
      contradict("snapshot #{shown(frames)} of stack #{shown(@stack)}") if changed && @known[@context] && !told
      @known[@context] = true
      @stack.pop(@stack.size - same)
      frames.drop(same).each { |frame| push(frame) }
    end

    def base_below?(frames, count)
      frames.map { |frame| frame.base ? true : false } == Array.new(frames.size) { |index| index < count.to_i }
    end

    def finish
      @stacks.delete(@context)
      @known.delete(@context)
      @session.close(@context)
    end

    def node(event)
      event = event.merge("called" => event["called"] || event["method"])
      texts = event.slice("owner", "method", "called", "kind", "file").transform_values { |text| @names.clean(text) }
      Node.from(event.merge(texts), base: event["base"] == true)
    end

    def contradict(text)
      @contradictions << "context #{@context} at #{@event["t"]}: #{text}"
    end

    def shown(stack)
      stack.map { |node| "#{node.owner}##{node.method}" }.inspect
    end
  end
end
