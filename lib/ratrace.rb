# frozen_string_literal: true

require_relative "ratrace/version"
require_relative "ratrace/errors"
require_relative "ratrace/exporter"
require_relative "ratrace/configuration"
require_relative "ratrace/stats"
require_relative "ratrace/ratrace"
require_relative "ratrace/canary"
require_relative "ratrace/targets"

# ratrace records every method call of a Ruby program, at a cost the program hardly notices, into files that can prove
# what they lost.
#
#   Ratrace.record(out_dir: "trace") { work }
#
# Threads: all of this is called in the main Ractor, except {attach} and {detach}. One recording a process. A forked
# child goes on recording into its own files, from its first call.
module Ratrace
  Native.canary = Canary

  autoload :Agent, File.expand_path("ratrace/agent", __dir__)
  autoload :Attendant, File.expand_path("ratrace/attendant", __dir__)
  autoload :Metrics, File.expand_path("ratrace/metrics", __dir__)
  autoload :Rack, File.expand_path("ratrace/rack", __dir__)

  class << self
    # Settings for recordings to come, above those of RATRACE_CONFIG and the environment. A later block adds to an
    # earlier one; a recording that runs keeps what it has.
    #
    #   Ratrace.configure { |c| c.period = 2 }
    #
    # @yieldparam builder [Configuration::Builder] a writer for each setting (README: "In a service")
    # @return [Configuration]
    # @raise [ConfigurationError] a line for each mistake; then nothing is changed
    def configure
      builder = Configuration::Builder.new(@configured || {})
      yield builder
      @configuration = Configuration.new(block: builder.values)
      @configured = builder.values.freeze
      @configuration
    end

    # What the latest recording was started with, else what one would be started with now.
    #
    # @return [Configuration] frozen
    # @raise [ConfigurationError]
    def configuration
      @configuration ||= configuration_with({})
    end

    # Start recording every thread and fiber of the main Ractor.
    #
    # @param options [Hash{Symbol => Object}] settings, above all other sources; the ones a script needs:
    #   out_dir [String] directory of the segment files, created if missing; default "ratrace.out";
    #   period [Numeric] seconds between two flushes, 0.01..3600; default 1;
    #   slot_size [Integer] bytes of each of the two slots, 16384..33554432, a multiple of 4096; default 8 MiB;
    #   c_calls [Boolean] record methods written in C, too; default false;
    #   include, exclude [String, Array<String>] record only, or do not record, methods whose file matches a glob;
    #   trace [Hash] only these files and methods, without a hook of the whole process:
    #   `trace: { files: "app/**/*.rb", methods: "Billing::*#charge" }`
    # @return [Boolean] false where recording is disabled
    # @raise [ConfigurationError] for an unknown option or a value that is not allowed
    # @raise [Error] when a recording is running already, or the directory cannot be written
    def start(**options)
      raise Error, "cannot start recording: it is running; call Ratrace.stop first" if recording?

      wanted = configuration_with(options)
      return false unless wanted.enabled

      Exporter.start(wanted) if wanted.export_url
      start_with(wanted)
    end

    # Start recording and nothing else.
    # @api private
    def start_with(wanted)
      Targets.check(wanted.scope) if wanted.scope
      stop_at_exit
      @configuration = wanted
      Native.start(wanted.to_native)
      make_ready(wanted.scope)
    end

    # What `options` and all other sources make together.
    # @api private
    def configuration_with(options)
      Configuration.new(options, block: @configured || {})
    end

    # Stop recording: write what is left, close the segment. Frames still open end here.
    #
    # @return [String, nil] path of the last segment; nil when nothing was being recorded
    # @raise [Error] when the end could not be written; what is left can be had with `ratrace recover`
    def stop
      Native.stop
    ensure
      Targets.remove unless recording?
    end

    # Write all that was recorded before this call to disk.
    #
    # @return [Boolean] false when nothing is being recorded
    # @raise [Error] when the disk refuses
    def flush
      Native.flush
    end

    # Record while the block runs. Whatever ends the block, recording is stopped as it was before.
    #
    # @return what the block returns
    # @raise as {start}
    def record(**options)
      started = start(**options)
      begin
        yield
      ensure
        stop if started
      end
    end

    # @return [Boolean] is this process being recorded?
    def recording?
      Native.recording?
    end

    # Counters of the running recording: events, drops by cause, bytes, times, segments; of the exporter; and :off, what
    # does not work as it was meant to and why.
    #
    # @return [Hash{Symbol => Object}]
    def stats
      Stats.read
    end

    private

    # Whatever ends this early, a kill or a timeout, too, ends the recording that has begun.
    def make_ready(trace)
      Targets.install(trace) if trace
      Native.prove
      ready = true
    ensure
      stop unless ready
    end

    # Once a process, because at_exit handlers are inherited by forked children.
    def stop_at_exit
      return if @stops_at_exit

      @stops_at_exit = true
      at_exit { stop_quietly }
    end

    # The host's exit must not change because the disk is full; what is left stays for `ratrace recover`.
    def stop_quietly
      stop
    rescue Error => e
      warn "ratrace: #{e.message}" if @configuration&.debug
    ensure
      Exporter.stop
    end
  end

  # Record the calling Ractor, too. Call it inside the Ractor's block; touches no state of another Ractor.
  #
  # @return [Boolean] false when nothing is being recorded
  def self.attach
    Native.attach
  end

  # Record the calling Ractor no longer. Call it before the Ractor's block ends.
  #
  # @return [Boolean]
  def self.detach
    Native.detach
  end
end
