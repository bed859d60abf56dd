# frozen_string_literal: true

require_relative "command"
require_relative "footer"
require_relative "text"

module Ratrace
  class CLI
    # `ratrace report`: where the time went.
    class Report < Command
      SORTS = {
        "self" => ->(row) { -row[:self_ns] },
        "total" => ->(row) { -row[:total_ns] },
        "calls" => ->(row) { -row[:calls] },
        "mean" => ->(row) { -row[:total_ns].fdiv([row[:calls], 1].max) },
        "max" => ->(row) { -row[:max_ns] },
        "name" => ->(_row) { 0 }
      }.freeze
      LIMIT = 30
      MIN_SHARE = 1.0
      NOTHING = "no calls were recorded"
      TITLES = ["calls", "total", "self", "mean", "max", "share", "method"].freeze
      TREE_TITLES = ["calls", "total", "self", "share", "method"].freeze

      private

      def define(options)
        options.banner = "Usage: ratrace report [OPTIONS] [FILE|DIR...]\n\nShows where the time went. " \
                         "share is a method's self time in that of all threads.\n#{recorded_here_help}"
        options.on("--sort KEY", "By #{SORTS.keys.join(", ")}; default self") do |key|
          @options[:sort] = choice(key, SORTS.keys)
        end
        options.on("--limit N", Integer, "Rows of a table, 0 = all; default #{LIMIT}") { |n| @options[:limit] = n }
        options.on("--threads", "A table for each thread") { @options[:threads] = true }
        options.on("--tree", "Who called whom, for each thread") { @options[:tree] = true }
        options.on("--depth N", Integer, "With --tree: how deep") { |n| @options[:depth] = n }
        options.on("--min-share PERCENT", Float, "With --tree: from which share on; default #{MIN_SHARE}") do |percent|
          @options[:min_share] = percent
        end
        define_memory(options)
      end

      def execute(operands)
        check
        @profile = recording(operands).profile(threads: @options[:threads], tree: @options[:tree],
                                               min_share: min_share / 100.0)
        @whole = @profile[:rows].sum { |row| row[:self_ns] }
        if @profile[:rows].empty?
          @out.puts NOTHING
        elsif @options[:tree]
          threads.each { |thread| tree(thread) }
        elsif @options[:threads]
          threads.each { |thread| section(thread) }
        else
          method_table(@profile[:rows])
        end
        @out.puts "", Footer.new(@profile).lines, *folded
        SUCCESS
      end

      def check
        raise UsageError, "--limit #{@options[:limit]}: use 0 or more" if @options[:limit]&.negative?
        raise UsageError, "--depth #{@options[:depth]}: use 1 or more" if @options[:depth] && @options[:depth] < 1
        raise UsageError, "--min-share #{min_share}: use 0 to 100" unless (0..100).cover?(min_share)
      end

      def min_share
        @options.fetch(:min_share, MIN_SHARE)
      end

      def threads
        @profile[:threads].sort_by.with_index { |thread, index| [-thread[:total_ns], index] }
      end

      def method_table(rows)
        names = names_of(rows)
        sorted = rows.sort_by { |row| [SORTS.fetch(@options.fetch(:sort, "self")).call(row), names[row]] }
        limit = @options.fetch(:limit, LIMIT)
        shown = limit.zero? ? sorted : sorted.first(limit)
        @out.puts Text.table(TITLES, shown.map { |row| cells(row, names[row]) }).join("\n")
        more = sorted.size - shown.size
        @out.puts "... and #{Text.number(more, "method")} more; --limit 0 shows all" if more.positive?
      end

      # Methods of one name at two places are told apart by their place.
      def names_of(rows)
        names = rows.to_h { |row| [row, Text.frame(row[:frame])] }.compare_by_identity
        doubles = names.values.tally
        rows.each { |row| names[row] += " #{Text.place(row[:frame])}" if doubles[names[row]] > 1 }
        names
      end

      def cells(row, name)
        mean = row[:calls].zero? ? "-" : Text.time(row[:total_ns] / row[:calls])
        [Text.count(row[:calls]), Text.time(row[:total_ns]), Text.time(row[:self_ns]), mean, Text.time(row[:max_ns]),
         Text.share(row[:self_ns], @whole), name]
      end

      def section(thread)
        heading(thread)
        method_table(thread[:rows])
      end

      def heading(thread)
        @out.puts "" if @headed
        @headed = true
        name = thread[:name] ? "Thread #{Text.clean(thread[:name])}" : "Thread #{thread[:context]}"
        process = @profile[:sessions][thread[:session]]
        facts = [*("tid #{thread[:os_tid]}" if thread[:os_tid]), "pid #{process[:pid]}",
                 Text.number(thread[:fibers], "fiber"), Text.time(thread[:total_ns])]
        facts << "#{Text.number(thread[:open], "frame")} still open" if thread[:open].positive?
        @out.puts "#{name}: #{facts.join(", ")}"
      end

      def tree(thread)
        heading(thread)
        rows = []
        pending = sorted(thread[:children]).map { |node| [node, 0] }
        while (node, depth = pending.shift)
          rows << branch(node, depth)
          next if @options[:depth] && depth + 1 >= @options[:depth]

          pending.unshift(*sorted(node[:children]).map { |child| [child, depth + 1] })
        end
        @out.puts(rows.empty? ? small(thread) : Text.table(TREE_TITLES, rows))
      end

      # Why a thread's tree is empty.
      def small(thread)
        return NOTHING if thread[:total_ns].zero?

        "every row is below #{min_share}% of the whole; --min-share 0 shows them"
      end

      def sorted(nodes)
        least = @profile[:total_ns] * min_share / 100
        nodes.select { |node| node[:total_ns] >= least }.sort_by.with_index { |node, index| [-node[:total_ns], index] }
      end

      def branch(node, depth)
        [Text.count(node[:calls]), Text.time(node[:total_ns]), Text.time(node[:self_ns]),
         Text.share(node[:total_ns], @profile[:total_ns]), "#{"  " * depth}#{Text.frame(node[:frame])}"]
      end

      def folded
        return [] if @profile[:folded].zero?

        ["folded:   #{Text.number(@profile[:folded], "call")} beyond the bound of the call tree, shown as (folded)"]
      end
    end
  end
end
