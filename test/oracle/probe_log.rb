# frozen_string_literal: true

require "json"
require_relative "probe"

module Oracle
  # What the probes of a random program wrote: per fiber, the stacks in order. And the same from a recording.
  class ProbeLog
    # A fiber or thread has another number in each log, so only the sequences of stacks count.
    def self.of_sessions(sessions)
      sequences(sessions.flat_map { |session| session.probes.values }.map { |stacks| stacks.map { |stack| own(stack) } })
    end

    def self.own(stack)
      Probe.own(stack.reject { |node| node.c? || node.base }.map { |node| [node.owner, node.method] })
    end

    def self.sequences(lists)
      lists.sort_by { |stacks| JSON.generate(stacks) }
    end

    def initialize(file)
      @entries = File.foreach(file, encoding: Encoding::UTF_8).map { |line| JSON.parse(line) }
    end

    def size
      @entries.size
    end

    def truth
      self.class.sequences(@entries.group_by { |entry| entry["context"] }.values.map { |list| list.map { _1["truth"] } })
    end

    # Probes at which the product's shadow stack was not the true one.
    def wrong_shadows
      @entries.reject { |entry| entry["shadow"].nil? || Probe.own(entry["shadow"]) == entry["truth"] }
    end

    def shadows
      @entries.count { |entry| entry["shadow"] }
    end
  end
end
