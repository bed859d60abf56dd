# frozen_string_literal: true

require_relative "../ratrace"
require_relative "metrics_file"

module Ratrace
  # One Ruby thread a process, which answers `ratrace ctl` and writes the metrics file. Started only for a service (Ratrace::Agent), and there is
  # none where nothing is for it to do.
  #
  # - It first sleeps for a second: a process that lives shorter never has a socket.
  # - It waits in our own C without the GVL (deliver/control.h), so no library is loaded into the host for it.
  # - It holds nothing while it waits, so a fork beside it is harmless; it says so to Puma. A child drops the inherited
  #   descriptor and has a thread of its own, both by Ruby's hook for the purpose, Process._fork.
  # - A host may join every thread there is, so when all others wait for threads for ever, this one ends. A host may be in
  #   a deadlock that Ruby would report if this thread slept for ever, too: where nobody joins, it does. Only a deadlock
  #   of which a join is part goes unreported.
  module Attendant
    TICK = 1.0 # seconds between two looks around
    # Where a thread waits for another thread. A sleep may end by a signal and is none of these.
    JOINS = %w[join value].freeze
    WAITS = [*JOINS, *%w[pop shift deq lock synchronize]].freeze

    # What tells a child that it is one; Process.daemon does not come by _fork.
    module ForkHook
      def _fork
        super.tap { |pid| Attendant.after_fork if pid.zero? }
      end

      def daemon(...)
        super.tap { Attendant.after_fork }
      end
    end

    class << self
      # What of its work does not succeed, and why: of :attendant, :control and :metrics_file.
      # @return [Hash{Symbol => String}]
      def troubles
        @troubles || {}
      end

      # The control socket's path while it listens.
      # @return [String, nil]
      attr_reader :path

      # Start, unless it was started. In the main Ractor.
      def start(configuration)
        return if @configuration

        @configuration = configuration
        @root = Application.new(configuration.root).root
        Process.singleton_class.prepend(ForkHook)
        spawn
      end

      # In a child: nothing of the parent's is used any more. Must not fail: this is inside the host's fork.
      def after_fork
        return unless @configuration

        Native.control_abandon
        @path = @written = nil
        spawn
      rescue StandardError
        nil # of another Ractor: it may not look at @configuration
      end

      private

      def spawn
        @troubles = {}
        thread = Thread.new { run }
        thread.name = "ratrace"
        thread.report_on_exception = false
        thread.thread_variable_set(:fork_safe, true)
      rescue ThreadError => e
        @troubles[:attendant] = e.message
      end

      def run
        sleep TICK
        attend
      rescue Exception => e # rubocop:disable Lint/RescueException -- whatever it is, it is not the host's
        @troubles[:attendant] = "#{e.class}: #{e.message}"
      ensure
        @path = nil
        Native.control_close
        @written&.remove
      end

      def attend
        while (waits = waits_of_others).empty?
          write_metrics if @configuration.metrics_file
          listen if @configuration.control && !(@path && File.socket?(@path))
          next sleep(TICK) unless @path

          request = Native.control_wait((TICK * 1000).to_i)
          return @troubles[:control] = "the host closed the control socket" if request == false

          Native.control_reply(answer(request)) if request
        end
        Queue.new.pop if (waits & JOINS).empty?
      end

      # As often as the recorder flushes, but not in each round; Prometheus asks every 15 seconds or so.
      def write_metrics
        now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        return if @written && now - @written_at < @configuration.period

        @written ||= MetricsFile.new(@configuration.metrics_file)
        @written.write(Metrics.text)
        @written_at = now
        @troubles.delete(:metrics_file)
      rescue SystemCallError => e
        @troubles[:metrics_file] = e.message
      end

      # Again if the directory was removed meanwhile, or is full for now.
      def listen
        Native.control_close
        @path = nil
        @path = Native.control_open(@configuration.out_dir)
        @troubles.delete(:control)
      rescue Error, SystemCallError => e
        @troubles[:control] = e.message
      end

      # What all other threads wait in for each other, or for this one; nothing if any does not.
      def waits_of_others
        others = Thread.list - [Thread.current]
        waits = others.map do |thread|
          next unless Thread.instance_method(:inspect).bind_call(thread).end_with?(" sleep_forever>")

          thread.backtrace_locations(0, 1)&.first&.base_label
        end
        (waits - WAITS).empty? ? waits : []
      end

      # ---------------------------------------------------------------- requests

      # "ok" or "error" and a text; of status, a line for each value.
      def answer(request)
        case request
        when "status" then ["ok", *lines(status)].join("\n")
        when "flush" then Ratrace.flush ? "ok flushed" : "error nothing is being recorded; start it first"
        when "start" then start_recording
        when "stop" then stop_recording
        else "error unknown request; known are start, stop, flush and status"
        end
      rescue Error, SystemCallError => e
        "error #{e.message.lines.map(&:strip).join("; ")}"
      end

      # Where nothing is recorded, also why.
      def status
        stats = Ratrace.stats
        return stats if stats[:recording]

        wanted = Ratrace.configuration
        { recording: false, why: wanted.enabled ? "it was stopped" : "enabled is off, by #{wanted.source(:enabled)}", **stats }
      end

      # Whoever asks for it beats `enabled`, but not RATRACE_DISABLED. Directories are those of the service's own start: it
      # may have left the one that they were relative to.
      def start_recording
        return "error it is being recorded already" if Ratrace.recording?

        started = Agent.start!(enabled: true, out_dir: @configuration.out_dir, root: @root)
        started ? "ok recording" : "error recording is disabled by #{Configuration::DISABLED_VARIABLE}"
      end

      def stop_recording
        Ratrace.recording? ? "ok stopped #{Ratrace.stop}".rstrip : "error nothing is being recorded"
      end

      # "drops.slot_full 0": a name, a space, a Ruby literal.
      def lines(values, prefix = "")
        values.flat_map do |name, value|
          case value
          when Hash then lines(value, "#{prefix}#{name}.")
          when String then "#{prefix}#{name} #{value.dump}"
          else "#{prefix}#{name} #{value.inspect}"
          end
        end
      end
    end
  end
end
