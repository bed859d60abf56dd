# frozen_string_literal: true

module Oracle
  # Runs a block when the program reaches its first line, so that nothing before it (RubyGems, a launcher) is touched.
  class FirstLine
    def self.of(program)
      trace = TracePoint.new(:line) do |point|
        next unless point.path == program

        trace.disable
        yield
      end
      trace.enable
    end
  end
end
