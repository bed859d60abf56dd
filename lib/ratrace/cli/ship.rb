# frozen_string_literal: true

require_relative "command"
require_relative "text"

module Ratrace
  class CLI
    # `ratrace ship`: delivers the segments of a directory, for as long as it runs. The work is done by the extension's
    # shipper thread; this starts it, tells what it says, and ends it.
    #
    # Secrets come from the environment or from files, because everybody on the machine can read a command line.
    class Ship < Command
      DEADLINE = 1.0 # seconds
      TICK = 0.1 # seconds between two looks at what there is to tell
      SIGNALS = %w[INT TERM].freeze
      SECRET_HEADERS = /\A(?:(?:proxy-)?authorization|cookie)\s*:/i.freeze
      TOKEN_BYTES_MAX = 64 * 1024

      private

      def define(options)
        options.banner = "Usage: ratrace ship DIR --to URL [OPTIONS]\n\nDelivers the closed segments in DIR, oldest " \
                         "first, and those to come, until SIGINT or\nSIGTERM. Each is removed once it is delivered; " \
                         "what is refused for good goes to\nDIR/poison. Any number of these, and exporters inside " \
                         "services, may share one DIR.\nWhat crashed processes left is finished first.\n\n"
        define_target(options)
        define_delivery(options)
        options.separator("\nFrom the environment: RATRACE_SHIP_TOKEN, a bearer token; RATRACE_SHIP_HEADERS, headers, " \
                          "one a\nline; for s3:// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, " \
                          "AWS_REGION,\nAWS_ENDPOINT_URL; http_proxy, https_proxy, all_proxy, no_proxy.\n")
      end

      def define_target(options)
        options.on("--to URL", "http(s)://HOST/PATH, or s3://BUCKET[/PREFIX]") { |url| @options[:to] = url }
        options.on("--method NAME", "put (to URL/NAME, the default) or post (to URL)") { |name| @options[:method] = name }
        options.on("--header LINE", "\"Name: value\", sent with each request; may be repeated") { |line| add_header(line) }
        options.on("--token-file FILE", "Send what is in it as a bearer token") { |path| @options[:token_file] = path }
        options.on("--finalize-url URL", "POST metadata as JSON there after each segment") do |url|
          @options[:finalize_url] = url
        end
        options.on("--s3-endpoint URL", "Other than AWS's own") { |url| @options[:endpoint] = url }
        options.on("--s3-region NAME", "Default AWS_REGION, else us-east-1") { |name| @options[:region] = name }
        options.on("--s3-path-style", "Bucket in the path, not in the host name") { @options[:path_style] = true }
        options.on("--ca-file FILE", "CA certificates to trust in place of the system's") { |path| @options[:ca_file] = path }
        options.on("--proxy URL", "Without a password; that goes into https_proxy") { |url| @options[:proxy] = url }
      end

      def define_delivery(options)
        options.on("--once", "End when all is delivered (0), or after 5 failures in a row (1)") { @options[:once] = true }
        options.on("--keep", "Move delivered segments to DIR/delivered") { @options[:keep] = true }
        options.on("--spool-bytes SIZE", "Drop the oldest segments beyond that; default no bound") do |text|
          @options[:spool_bytes] = size(text)
        end
        options.on("--spool-age S", Float, "Drop segments older than that; default never") { |s| @options[:spool_age] = s }
        options.on("--timeout S", Float, "For one request; default 600") { |s| @options[:timeout] = s }
        options.on("--deadline S", Float, "For the end after a signal; default 1") { |s| @options[:deadline] = s }
      end

      def add_header(line)
        if line.match?(SECRET_HEADERS)
          raise UsageError, "#{line[/\A[\w-]+/]} is a secret, and others see this command line: put the token into a " \
                            "--token-file, other headers into RATRACE_SHIP_HEADERS"
        end
        (@options[:headers] ||= []) << line
      end

      # -------------------------------------------------------------- running

      def execute(operands)
        raise UsageError, "give one directory; see `ratrace ship --help`" unless operands.size == 1
        raise UsageError, "no --to given; see `ratrace ship --help`" unless @options[:to]

        @dir = operands.first
        raise ReadError, "#{@dir}: no such directory" unless File.directory?(@dir)

        require_relative "../../ratrace"
        trapping { |signals| ship(signals) }
      end

      def ship(signals)
        Native.exporter_start(settings)
        begin
          watch(signals)
        ensure
          Native.exporter_stop(@options.fetch(:deadline, DEADLINE))
          tell
        end
        finish(signals.first, Native.exporter_stats)
      end

      def watch(signals)
        while signals.empty? && Native.exporter_stats[:running]
          tell
          sleep TICK
        end
        say("SIG#{signals.first}: stopping, within #{@options.fetch(:deadline, DEADLINE)} s") if signals.any?
      end

      # What arrives while the block runs.
      def trapping
        arrived = []
        before = SIGNALS.to_h { |name| [name, trap(name) { arrived << name }] }
        yield arrived
      ensure
        before&.each { |name, handler| trap(name, handler || "DEFAULT") }
      end

      def tell
        Native.exporter_lines.each { |_, line| say(line) }
      end

      def say(line)
        @err.puts "ratrace: ship: #{Text.clean(line)}"
      end

      # -------------------------------------------------------------- the end

      def finish(signal, stats)
        dropped = stats[:dropped].values.sum
        @out.puts "#{@dir}: #{summary(stats, dropped)}"
        say("last error: #{stats[:last_error]}") if stats[:waiting].positive? && stats[:last_error]
        all = stats[:waiting].zero? && stats[:poisoned].zero? && dropped.zero?
        all || (signal && !@options[:once]) ? SUCCESS : FAILURE
      end

      def summary(stats, dropped)
        parts = ["#{Text.number(stats[:delivered], "segment")} delivered (#{Text.number(stats[:delivered_bytes], "byte")})"]
        parts << "#{stats[:waiting]} still waiting" if stats[:waiting].positive?
        parts << "#{stats[:poisoned]} refused, in #{File.join(@dir, "poison")}" if stats[:poisoned].positive?
        parts << "#{dropped} dropped" if dropped.positive?
        parts.join(", ")
      end

      # -------------------------------------------------------------- what the extension takes

      def settings
        { out_dir: File.expand_path(@dir), live_dir: @env["RATRACE_LIVE_DIR"], **target, headers: headers, token: token,
          proxy: proxy, spool_bytes: @options.fetch(:spool_bytes, 0), lines: true,
          **@options.slice(:method, :finalize_url, :ca_file, :once, :keep, :spool_age, :timeout),
          time_scale: @env["RATRACE_SHIP_TIME_SCALE"]&.to_f } # for tests: waits go by that much faster
      end

      def target
        return { url: @options[:to] } unless @options[:to].match?(%r{\As3://}i)

        bucket, prefix = @options[:to].sub(%r{\As3://}i, "").split("/", 2)
        prefix = "#{prefix}/" unless prefix.nil? || prefix.empty? || prefix.end_with?("/")
        { s3: { bucket: bucket.to_s, prefix: prefix, path_style: @options[:path_style],
                endpoint: @options[:endpoint] || @env["AWS_ENDPOINT_URL_S3"] || @env["AWS_ENDPOINT_URL"],
                region: @options[:region] || @env["AWS_REGION"] || @env["AWS_DEFAULT_REGION"],
                access_key_id: @env["AWS_ACCESS_KEY_ID"], secret_access_key: @env["AWS_SECRET_ACCESS_KEY"],
                session_token: @env["AWS_SESSION_TOKEN"] } }
      end

      def headers
        secret = @env.fetch("RATRACE_SHIP_HEADERS", "").lines.map(&:strip).reject(&:empty?)
        [*@options[:headers], *secret]
      end

      def token
        path = @options[:token_file]
        return @env["RATRACE_SHIP_TOKEN"] unless path

        text = File.read(path, TOKEN_BYTES_MAX).to_s.strip
        raise UsageError, "#{path}: has no token in it" if text.empty?

        text
      end

      def proxy
        url = @options[:proxy]
        raise UsageError, "--proxy: others see this command line; put a proxy with a password into https_proxy" if url&.include?("@")

        url
      end
    end
  end
end
