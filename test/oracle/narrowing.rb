# frozen_string_literal: true

require_relative "node"

module Oracle
  # Leaves of sessions what scoped tracing would have recorded: the calls that the block wants. What others called moves
  # up to the next one wanted, and nothing was open at start.
  class Narrowing
    Part = Struct.new(:roots)

    def initialize(&wanted)
      @wanted = wanted
    end

    def sessions(sessions)
      sessions.map { |session| Part.new(session.roots.map { |root| narrowed(root) }) }
    end

    private

    # Without recursion: some trees are deeper than Ruby's stack.
    def narrowed(root)
      copy = Node.root
      work = [[root, copy]]
      while (node, into = work.pop)
        into.children = kept_of(node).map { |child| child.dup.tap { |twin| work << [child, twin] } }
      end
      copy
    end

    def kept_of(node)
      kept = []
      pending = node.children.reverse
      while (child = pending.pop)
        if child.base || !@wanted.call(child)
          pending.concat(child.children.reverse)
        else
          kept << child
        end
      end
      kept
    end
  end
end
