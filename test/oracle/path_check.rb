# frozen_string_literal: true

module Oracle
  # Checks that every stack in one normalised recording, even one with holes, also occurs in a complete one.
  class PathCheck
    def initialize(complete)
      @top = complete.flatten(1)
    end

    # The stacks of +partial+ that never were, as text, bottom first.
    def strangers(partial)
      partial.flat_map { |calls| search(calls, @top, []) }
    end

    private

    def search(calls, candidates, path)
      calls.flat_map do |call|
        same = candidates.select { |candidate| candidate.first(5) == call.first(5) }
        here = path + ["#{call[0]}##{call[1]}"]
        same.empty? ? [here.join(" > ")] : search(call.last, same.flat_map(&:last), here)
      end
    end
  end
end
