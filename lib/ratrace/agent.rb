# frozen_string_literal: true

require_relative "../ratrace"

module Ratrace
  # The recorder as a service runs it: started once by whatever comes first (RUBYOPT, a server's hook, the middleware),
  # from the configuration alone, and never a reason for the host to fail.
  #
  # What the configuration does not say is chosen for a service: the application's own files are traced, no gems.
  #
  # Where `enabled` is off, nothing is recorded until `ratrace ctl` asks for it; with `control` off, too, or by
  # RATRACE_DISABLED, there is nobody it could ask.
  #
  # Fork. The recorder goes on in a child by itself, from its first call; nothing need be called there.
  module Agent
    class << self
      # Start, unless this process is recorded already, and begin what goes with it. What keeps it from recording is one
      # line on stderr.
      #
      # @return [Boolean] is this process being recorded now?
      def start
        started = Ratrace.recording? || start!
        wanted = Ratrace.configuration
        Attendant.start(wanted) if started ? wanted.control || wanted.metrics_file : wanted.control && wanted.startable?
        started
      rescue Error, SystemCallError => e
        complain(e)
        false
      end

      # Start recording as a service does.
      #
      # @param asked [Hash{Symbol => Object}] settings, above all other sources
      # @return [Boolean] false where recording is disabled
      # @raise as {Ratrace.start}
      def start!(**asked)
        wanted = Ratrace.configuration_with(asked)
        wanted = Ratrace.configuration_with({ **choices(wanted), **asked })
        return false unless wanted.enabled

        Ratrace.start_with(wanted)
        export(wanted)
        true
      end

      # Say on one line why not.
      # @api private
      def complain(error, what = "not recording")
        lines = error.message.scrub.delete_prefix("cannot start recording: ").lines.map(&:strip).reject(&:empty?)
        $stderr.write("ratrace: #{what}: #{lines.join("; ")}\n")
      rescue SystemCallError, IOError
        nil # nobody listens
      end

      private

      # Without an exporter the segments stay where they are, for `ratrace ship`.
      def export(wanted)
        Exporter.start(wanted)
      rescue Error => e
        complain(e, "not delivering")
      end

      # What a service wants and nobody asked for.
      def choices(configuration)
        return {} if configuration.trace || !configuration.include.empty?

        application = Application.new(configuration.root)
        own = configuration.c_calls ? { include: application.files } : { trace: { files: application.files } }
        { **own, exclude: [*configuration.exclude, *application.foreign] }
      end
    end
  end
end
