# frozen_string_literal: true

module Oracle
  # One call: which method, whether it returned, and what it called. A node without a method is a root or, with
  # +base+ set, a frame that was open when the recording started.
  Node = Struct.new(:owner, :method, :called, :kind, :file, :line, :base, :returned, :children) do
    def self.from(event, base: false)
      new(*event.values_at("owner", "method", "called", "kind", "file", "line"), base, false, [])
    end

    def self.root
      new(nil, nil, nil, nil, nil, nil, true, false, [])
    end

    def c?
      kind.to_s.start_with?("c_")
    end

    def identity
      [owner, method, called, kind]
    end
  end
end
