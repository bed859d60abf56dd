# frozen_string_literal: true

require "json"
require_relative "node"

module Oracle
  # Turns sessions into plain nested arrays that are equal when the recorded calls were:
  #
  #   [context, ...]   context = [call, ...]
  #   call = [owner, method, called, kind, line, "returned" | "gone", [call, ...]]
  #
  # The contexts of all sessions are sorted, and empty ones left out. Frames that were open when the recording started and the
  # frames of recorders, launchers and RubyGems are left out; what the program's own methods did below them moves up.
  class Normaliser
    ORACLE = __dir__
    CORPUS = File.join(ORACLE, "corpus")
    PROJECT = File.expand_path("../..", ORACLE)
    MACHINERY = [File.join(PROJECT, "lib/"), File.join(PROJECT, "exe/")].freeze
    LOADERS = /rubygems|bundler/
    # Its thread looks at the clock as often as the scheduler lets it.
    WATCHER = %r{/timeout\.rb\z}
    # Where a stack overflows depends on what the recorder put on it: calls that deep count only if they returned.
    OVERFLOW = 300

    def initialize(program)
      @program = program
    end

    def normalise(sessions)
      contexts = sessions.flat_map(&:roots).reject { |root| watches?(root) }.map { |root| children_of(bracketed(root), true, false) }
      contexts.reject(&:empty?).sort_by { |calls| JSON.generate(calls, max_nesting: false) }
    end

    # Whether a frame belongs to the program, by its file; +loading+ below a `require`, where other libraries' start-up
    # is left out too, because the recorder may have loaded them already.
    def own?(node, loading)
      file = node.file.to_s
      return true if file == @program || file.start_with?("#{CORPUS}/", "(")
      return false if file.start_with?(*MACHINERY, "#{ORACLE}/") || LOADERS.match?(file)

      !loading
    end

    private

    # The thread of the timeout library: nothing of the program runs in it.
    def watches?(root)
      seen = false
      nodes = root.children.dup
      while (node = nodes.pop)
        watching = WATCHER.match?(node.file.to_s)
        return false unless watching || of_vm?(node)

        seen ||= watching
        nodes.concat(node.children)
      end
      seen
    end

    # See bracket.rb.
    def bracketed(root)
      calls = above_base(root)
      first = calls.index { |node| node.method == "oracle_first_line" } || -1
      last = calls.rindex { |node| node.method == "oracle_last_line" } || calls.size
      Node.root.tap { |part| part.children = calls[first + 1...last] }
    end

    # Frames open at start may stay open to the end.
    def above_base(node)
      node.children.flat_map { |child| child.base ? above_base(child) : [child] }
    end

    # +own+: the frame above belongs to the program, so a method of the VM that it calls does, too.
    def children_of(node, own, loading, depth = 0)
      loading ||= LOADERS.match?(node.file.to_s)
      node.children.flat_map { |child| shape(child, own, loading, depth) }
    end

    def shape(node, own, loading, depth)
      return children_of(node, node.base, loading, depth) if node.base
      return children_of(node, true, loading, depth) if launch?(node, depth)
      return children_of(node, false, loading, depth) unless of_vm?(node) ? own : own?(node, loading)
      return [] if depth > OVERFLOW && !node.returned

      [[*node.identity, line(node), node.returned ? "returned" : "gone", children_of(node, true, loading, depth + 1)]]
    end

    # The `load` of the program by bracket.rb.
    def launch?(node, depth)
      node.c? && depth.zero? && node.identity.first(2) == %w[Kernel load]
    end

    def line(node)
      of_vm?(node) ? 0 : node.line
    end

    # Written in C, or in Ruby inside the VM.
    def of_vm?(node)
      node.c? || (node.file.to_s.start_with?("<internal:") && !LOADERS.match?(node.file))
    end
  end
end
