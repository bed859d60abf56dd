# frozen_string_literal: true

require_relative "command"
require_relative "text"
require_relative "watching"

module Ratrace
  class CLI
    # `ratrace top`: what running processes are doing.
    class Top < Command
      include Watching

      INTERVALS = (0.1..60.0).freeze
      INTERVAL = 1.0
      PAUSE_S = 0.05 # between two looks at the slots
      ROWS = 20      # methods, where there is no terminal to fill
      THREADS = 10
      SORTS = { "self" => :self_ns, "total" => :total_ns, "calls" => :calls }.freeze
      TITLES = ["share", "self", "total", "calls/s", "method"].freeze
      THREAD_TITLES = ["pid", "tid", "state", "frames", "thread", "in"].freeze
      WINDOW = [24, 80].freeze
      QUIT = ["q", "Q", "\u0003", "\u0004", nil].freeze # nil: the terminal is gone
      STATES = { "R" => "running", "S" => "sleeping", "D" => "disk", "T" => "stopped", "t" => "traced", "Z" => "ended",
                 "I" => "idle" }.freeze

      private

      def define(options)
        options.banner = "Usage: ratrace top [OPTIONS] PID|DIR\n\nShows what a running process, or all that record into " \
                         "DIR, did in the last interval:\nmethods, events, losses, threads. They notice nothing of it. " \
                         "q quits. share is a\nmethod's self time in that of all; times are wall time, waiting " \
                         "included.\n\n"
        options.on("--interval S", Float, "Seconds between two screens; default #{INTERVAL}") { |s| @options[:interval] = s }
        options.on("--once", "One screen, as text") { @options[:once] = true }
        options.on("--sort KEY", "By #{SORTS.keys.join(", ")}; default self") do |key|
          @options[:sort] = choice(key, SORTS.keys)
        end
        options.on("--limit N", Integer, "Methods to show; default what fits, or #{ROWS}") { |n| @options[:limit] = n }
        define_memory(options)
      end

      def execute(operands)
        target(operands)
        raise UsageError, "--interval #{interval}: use 0.1 to 60 seconds" unless INTERVALS.cover?(interval)
        raise UsageError, "--limit #{@options[:limit]}: use 1 or more" if @options[:limit] && @options[:limit] < 1

        @counts = {}
        find_first(profile: true, memory_max: @options[:memory_max])
        on_screen? ? full_screen : plain
        SUCCESS
      end

      def interval
        @options.fetch(:interval, INTERVAL)
      end

      # ------------------------------------------------------------ where to

      def on_screen?
        return false if @options[:once] || !@out.tty? || !$stdin.tty?

        require "io/console"
        require "io/wait"
        true
      end

      def plain
        loop do
          screen = watch { sleep PAUSE_S }
          @out.puts screen
          break if @options[:once] || watched.empty?

          @out.puts ""
        end
      end

      # Whatever ends this, the terminal is as it was.
      def full_screen
        $stdin.raw(intr: true) do
          @out.write("\e[?1049h\e[?25l")
          loop do
            lines = watch { break if quit? }
            break if lines.nil? || watched.empty?

            draw(lines)
          end
        ensure
          @out.write("\e[?25h\e[?1049l")
        end
        @out.puts "the recording has ended" if watched.empty?
      end

      def quit?
        $stdin.wait_readable(PAUSE_S) && QUIT.include?($stdin.read_nonblock(1, exception: false))
      end

      def draw(lines)
        rows, columns = window
        shown = lines.first(rows - 1).map { |line| line[0, columns - 1] }
        @out.write("\e[H", shown.map { |line| "#{line}\e[K\r\n" }.join, "\e[J")
      end

      # A terminal may not know its size.
      def window
        @out.winsize.zip(WINDOW).map { |size, usual| size.positive? ? size : usual }
      end

      def limit
        return @options[:limit] if @options[:limit]
        return ROWS unless on_screen?

        [window.first - watched.size - THREADS - 7, 3].max
      end

      # ------------------------------------------------------------ an interval

      # What the slots hold by now was before the first interval.
      def begin_with(live)
        @counts[live.pid] = live.look
        live.cut
      end

      # Look at the slots until the interval is over; the block waits a little. The lines of a screen.
      def watch
        start = clock
        before = @counts.dup
        lives = watched.values
        threads = []
        methods = {}
        begin
          look_at_all { |live| (@counts[live.pid] = live.look).merge(over: ended?(live, methods, threads)) }
          yield
        end while clock - start < interval && !watched.empty?
        watched.each_value { |live| add(live, methods, threads) }
        find_more_sometimes
        screen(lives, before, clock - start, methods.values, threads)
      end

      # The last words of a process that ends within the interval count, too.
      def ended?(live, methods, threads)
        return false unless @counts[live.pid][:over]

        add(live, methods, threads)
        true
      end

      def add(live, methods, threads)
        told = live.cut
        told[:rows].each do |row|
          method = [Text.frame(row[:frame]), Text.place(row[:frame])]
          sum = methods[method] ||= { frame: row[:frame], calls: 0, self_ns: 0, total_ns: 0 }
          %i[calls self_ns total_ns].each { |field| sum[field] += row[field] }
        end
        threads.concat(told[:threads].map { |thread| thread.merge(pid: live.pid) })
      end

      # ------------------------------------------------------------ a screen

      def screen(lives, before, seconds, methods, threads)
        ["ratrace top, #{Time.now.strftime("%H:%M:%S")}, #{format("%.1f", seconds)} s",
         *lives.map { |live| process(live, before, seconds) }, "", *method_table(methods, seconds), "",
         *thread_table(threads)]
      end

      def process(live, before, seconds)
        now, last = @counts.fetch(live.pid), before.fetch(live.pid)
        seen, dropped, missed = %i[events dropped missed].map { |field| now[field] - last[field] }
        "pid #{live.pid}, #{Text.clean(live.service)} on #{Text.clean(live.host)}, ruby #{Text.clean(live.ruby)}: " \
          "#{Text.count(((seen + missed) / seconds).round)} events/s, #{Text.count(dropped)} dropped, #{Text.count(missed)} not seen" \
          "#{", ended" if now[:over]}"
      end

      def method_table(rows, seconds)
        whole = rows.sum { |row| row[:self_ns] }
        key = SORTS.fetch(@options.fetch(:sort, "self"))
        names = rows.to_h { |row| [row, Text.frame(row[:frame])] }.compare_by_identity
        doubles = names.values.tally
        shown = rows.sort_by { |row| [-row[key], names[row]] }.first(limit).map do |row|
          place = " #{Text.place(row[:frame])}" if doubles[names[row]] > 1
          [Text.share(row[:self_ns], whole), Text.time(row[:self_ns]), Text.time(row[:total_ns]),
           Text.count((row[:calls] / seconds).round), "#{names[row]}#{place}"]
        end
        Text.table(TITLES, shown)
      end

      def thread_table(threads)
        alive = threads.filter_map { |thread| state_of(thread)&.then { |state| [thread, state] } }
        shown = alive.sort_by { |thread, _| -thread[:last_ns] }.first(THREADS).map do |thread, state|
          [thread[:pid].to_s, thread[:os_tid].to_s, state, thread[:depth].to_s,
           thread[:name] ? Text.clean(thread[:name]) : "-", thread[:frame] ? Text.frame(thread[:frame]) : "-"]
        end
        more = alive.size - shown.size
        table = Text.table(THREAD_TITLES, shown)
        more.positive? ? [*table, "... and #{Text.number(more, "thread")} more"] : table
      end

      # As the kernel says; nil of a thread that is no more.
      def state_of(thread)
        stat = File.binread("/proc/#{thread[:pid]}/task/#{thread[:os_tid]}/stat")
        STATES.fetch(stat[/.*\) (\w)/mn, 1], "unknown")
      rescue SystemCallError
        nil
      end
    end
  end
end
