# frozen_string_literal: true

module Ratrace
  # Delivery of closed segments from inside the process, and the bounds of their directory: one a process, begun by the
  # first recording that wants it, ended by the end of the process. A forked child goes on by itself.
  module Exporter
    class << self
      # Start, or start anew where another place or other bounds are wanted than before.
      #
      # @param configuration [Configuration]
      # @raise [Error] naming what keeps it from starting
      def start(configuration)
        wanted = configuration.to_exporter
        running = Native.exporter_stats[:running]
        return if running && wanted == @wanted

        Native.exporter_stop if running
        Native.exporter_start(wanted)
        @wanted = wanted.freeze
      end

      # Deliver what is left, for as long as the configuration allows.
      #
      # @return [Boolean, nil] is all delivered? nil = nothing was running
      def stop
        Native.exporter_stop if @wanted
      end

      # Counters; nil when there was never one.
      #
      # @return [Hash{Symbol => Object}, nil]
      def stats
        Native.exporter_stats if @wanted
      end
    end
  end
end
