# frozen_string_literal: true

module Ratrace
  class CLI
    # What `top` and `tail` share: the processes meant by PID|DIR, those that come later, and those that end.
    module Watching
      SCAN_S = 1.0 # between two looks for new processes

      private

      # @return [Hash{String => Live}] by the name of its live file
      def watched
        @watched ||= {}
      end

      def target(operands)
        raise UsageError, "no PID or directory given; see `ratrace #{name} --help`" if operands.empty?
        raise UsageError, "one PID or directory, not #{operands.size}" if operands.size > 1

        @target = operands.first
        return if @target.match?(/\A\d+\z/) || File.directory?(@target)

        raise ReadError, "#{@target}: neither a PID nor a directory"
      end

      def live_dir
        @env["RATRACE_LIVE_DIR"]
      end

      def find_first(**options)
        require_relative "../live"
        @live_options = options
        find_more
        return unless watched.empty?

        what = @target.match?(/\A\d+\z/) ? "process #{@target} is not being recorded" : "nobody records into #{@target}"
        where = live_dir || "/dev/shm/ratrace-#{Process.euid}"
        raise ReadError, "#{what}, or not where its memory can be looked at (#{where})"
      end

      # Those that are not watched yet.
      def find_more
        @scanned = clock
        Live.find(@target, live_dir: live_dir, except: watched.keys, **@live_options).each do |live|
          watched[live.name] = live
          begin_with(live)
        end
      end

      # What a command does when it meets a process.
      def begin_with(live); end

      def find_more_sometimes
        find_more if clock - @scanned >= SCAN_S
      rescue ReadError
        nil # told when there was nothing else
      end

      # Look at each; those that have ended, or cannot be read any more, are watched no longer.
      # @yieldparam live [Live]
      # @yieldreturn [Hash] what {Live#look} gave
      def look_at_all
        watched.each_value.to_a.each do |live|
          unwatch(live) if yield(live)[:over]
        rescue ReadError => e
          unwatch(live)
          raise if watched.empty?

          @err.puts "ratrace: #{name}: #{e.message}"
        end
      end

      def unwatch(live)
        watched.delete(live.name)
        live.close
      end

      def clock
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
