# frozen_string_literal: true

require "io/wait"
require_relative "../errors"
require_relative "gate"

module Ratrace
  class Receiver
    # Puma with the gate before it. Works with Puma 5 to 7.
    class Server
      THREADS = (1..16).freeze
      IDLE_S = 30  # without a byte of a request
      FORCE_S = 10 # until requests under way are given up, at the end

      # @return [Integer]
      attr_reader :port

      # @param app [#call] of Rack
      # @param keeper [Gate::Keeper]
      # @param address [String] to listen on
      # @param port [Integer] 0 = any
      # @param spool [String] directory of bodies that are being read
      # @raise [Error] when there is no Puma, or the address cannot be had
      def initialize(app, keeper:, address:, port:, spool:)
        load_puma
        ENV["TMPDIR"] = spool # where Puma's own files go
        @puma = make(app)
        @listener = listen(address, port)
        @listener.keeper = keeper
        @port = @listener.local_address.ip_port
        @puma.binder.ios << @listener
      end

      # Serve until `stop` can be read from.
      # @param stop [IO]
      def run(stop)
        thread = @puma.run
        nil until stop.wait_readable(1) || !thread.alive?
        @puma.stop(true)
      end

      private

      def load_puma
        require "puma"
        require "puma/server"
      rescue LoadError
        raise Error, "there is no gem puma, which this command runs on; get it with `gem install puma`"
      end

      def make(app)
        options = { min_threads: THREADS.min, max_threads: THREADS.max, first_data_timeout: IDLE_S,
                    force_shutdown_after: FORCE_S, environment: "production",
                    lowlevel_error_handler: ->(*) { [500, { "content-type" => "text/plain" }, ["this failed here\n"]] } }
        return Puma::Server.new(app, nil, options.merge(log_writer: Puma::LogWriter.null)) if defined?(Puma::LogWriter)

        Puma::Server.new(app, Puma::Events.null, options)
      end

      def listen(address, port)
        Gate::Listener.new(address, port)
      rescue SystemCallError, SocketError => e
        raise Error, "cannot listen on #{address} port #{port}: #{e.message}"
      end
    end
  end
end
