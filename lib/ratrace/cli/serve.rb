# frozen_string_literal: true

require_relative "command"

module Ratrace
  class CLI
    # `ratrace serve`: takes what a team's services ship, and shows it.
    class Serve < Command
      PORT = 9277
      BIND = "127.0.0.1"
      TOKEN = "RATRACE_SERVE_TOKEN"
      TOKEN_FILE_MAX = 4096
      LOOPBACK = ["localhost", "::1", /\A127\.\d{1,3}\.\d{1,3}\.\d{1,3}\z/].freeze
      PORTS = (0..65_535).freeze
      UPLOADS = (1..64).freeze
      SECONDS = (1..86_400).freeze

      private

      def define(options)
        options.banner = "Usage: ratrace serve --dir DIR [OPTIONS]\n\nTakes segments that `ratrace ship` or an agent " \
                         "sends (PUT or POST to /segments/NAME),\nrefuses what does not verify, and shows them as pages " \
                         "and JSON. Needs the gem puma.\nThe token comes from a file or from #{TOKEN}; a browser is " \
                         "asked for it as a\npassword, with any user name. For other machines put a proxy with TLS " \
                         "before it.\n\n"
        options.on("--dir DIR", "Where segments are stored; made if missing") { |dir| @options[:dir] = dir }
        options.on("--port N", Integer, "Default #{PORT}; 0 = any free one") { |port| @options[:port] = port }
        options.on("--bind ADDRESS", "Default #{BIND}; others need a token") { |address| @options[:bind] = address }
        options.on("--token-file FILE", "The token, 16 characters or more") { |file| @options[:token_file] = file }
        options.on("--max-segment SIZE", "Of one upload; default 256M") { |text| @options[:max_segment] = size(text) }
        options.on("--max-disk SIZE", "Of all in DIR; default 10G") { |text| @options[:max_disk] = size(text) }
        options.on("--max-uploads N", Integer, "At a time; default 8") { |n| @options[:max_uploads] = n }
        options.on("--upload-timeout S", Integer, "Of one upload; default 300") { |s| @options[:upload_timeout] = s }
        define_memory(options)
      end

      def execute(operands)
        check(operands)
        token = token_from_file || token_from_environment
        check_bind(token)
        require_relative "../receiver"
        require_relative "../receiver/server"
        serve(token)
        SUCCESS
      end

      def check(operands)
        raise UsageError, "no directory given; name it with --dir" unless @options[:dir]
        raise UsageError, "#{operands.first}: not understood; see `ratrace serve --help`" unless operands.empty?

        check_range("--port", port, PORTS)
        check_range("--max-uploads", @options[:max_uploads], UPLOADS)
        check_range("--upload-timeout", @options[:upload_timeout], SECONDS)
        check_range("--max-segment", @options[:max_segment], 1..(1024**3))
      end

      def check_range(option, value, allowed)
        return if value.nil? || allowed.cover?(value)

        raise UsageError, "#{option} #{value}: use #{allowed.min} to #{allowed.max}"
      end

      def port
        @options.fetch(:port, PORT)
      end

      def bind
        @options.fetch(:bind, BIND)
      end

      def token_from_file
        path = @options[:token_file]
        return unless path
        raise UsageError, "--token-file #{path}: is no file" unless File.file?(path)

        check_token(File.read(path, TOKEN_FILE_MAX), path)
      rescue SystemCallError => e
        raise UsageError, "--token-file #{path}: cannot be read: #{e.message}"
      end

      def token_from_environment
        token = @env[TOKEN]
        check_token(token, TOKEN) unless token.nil? || token.empty?
      end

      def check_token(text, from)
        require_relative "../receiver/access"
        Receiver::Access.token(text, from)
      end

      def check_bind(token)
        return if token || LOOPBACK.any? { |address| address === bind }

        raise UsageError, "--bind #{bind}: other machines could write here; give a token with --token-file or #{TOKEN}"
      end

      def serve(token)
        verifier = Receiver::Verifier.new(**{ memory_max: @options[:memory_max] }.compact)
        store = Receiver::Store.new(@options[:dir], verifier: verifier, log: @out,
                                                    **{ disk_max: @options[:max_disk] }.compact)
        access = Receiver::Access.new(token)
        segment_max = @options.fetch(:max_segment, Receiver::SEGMENT_MAX)
        app = Receiver.new(store: store, access: access, report: Receiver::Report.new(store, verifier),
                           segment_max: segment_max, log: @out)
        keeper = Receiver::Gate::Keeper.new(store: store, access: access, segment_max: segment_max, log: @out, **limits)
        serve_with(Receiver::Server.new(app, keeper: keeper, address: bind, port: port, spool: store.spool))
      end

      def limits
        { uploads_max: @options[:max_uploads], upload_s: @options[:upload_timeout] }.compact
      end

      def serve_with(server)
        stop, wake = IO.pipe
        before = %w[INT TERM].to_h { |signal| [signal, trap(signal) { wake.write_nonblock("x", exception: false) }] }
        host = bind.include?(":") ? "[#{bind}]" : bind
        @out.puts "listening on http://#{host}:#{server.port}, storing in #{@options[:dir]}"
        server.run(stop)
      ensure
        before&.each { |signal, handler| trap(signal, handler) }
      end
    end
  end
end
