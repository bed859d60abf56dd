# frozen_string_literal: true

require "net/http"
require "openssl"

module Ratrace
  class Doctor
    # Does the endpoint answer? A HEAD request without credentials, with the same proxy and certificates as a delivery's.
    class Endpoint
      TIMEOUT = 3 # seconds for each of connecting, TLS and the answer

      # @return [Array<Finding>]
      attr_reader :findings

      def initialize(configuration)
        @configuration = configuration
        @findings = []
        url = configuration.export_url
        return add("ok", "none is set; segments stay in out_dir, for `ratrace ship` or by hand") unless url

        [url.match?(%r{\As3://}i) ? s3 : url, configuration.finalize_url].compact.each { |one| reach(one) }
      end

      private

      def add(level, text, remedy = nil)
        @findings << Finding.new(area: "endpoint", level: level, text: text, remedy: remedy)
      end

      def s3
        @configuration.s3_endpoint || "https://s3.#{@configuration.s3_region || "us-east-1"}.amazonaws.com"
      end

      def reach(url)
        uri = URI(url)
        name = "#{uri.scheme}://#{uri.host}:#{uri.port}"
        answered(name, ask(uri))
      rescue URI::InvalidURIError # whose message holds the URL with all its secrets
        add("failure", "#{name ? "the proxy" : "the URL"} has characters in it that a URL may not have", "write them as %XX")
      rescue SocketError => e
        add("failure", "#{name}: the name is not known: #{e.message}", "correct the host in the URL, or the resolver")
      rescue OpenSSL::SSL::SSLError => e
        add("failure", "#{name}: TLS: #{e.message}", "correct the server's certificate, or give its authority's in ca_file")
      rescue Timeout::Error, Errno::ETIMEDOUT
        add("failure", "#{name}: no answer within #{TIMEOUT} s", "see that it runs and that no firewall lies between")
      rescue StandardError => e # net/http has many ways to say no
        add("failure", "#{name || "the URL"}: #{e.message.lines.first.chomp}", "see that it runs and that the port is right")
      end

      def ask(uri)
        options = { use_ssl: uri.scheme == "https", ca_file: @configuration.ca_file, open_timeout: TIMEOUT, ssl_timeout: TIMEOUT,
                    read_timeout: TIMEOUT, max_retries: 0 }.compact
        Net::HTTP.start(uri.host, uri.port, *proxy, **options) { |http| http.head(uri.path.empty? ? "/" : uri.path) }
      end

      # Nothing: what the environment says.
      def proxy
        return [] unless @configuration.proxy

        uri = URI(@configuration.proxy)
        [uri.host, uri.port, uri.user, uri.password]
      end

      def answered(name, response)
        code = response.code.to_i
        return add("ok", "#{name} answers (#{code} to HEAD without credentials)") if code < 500

        add("warning", "#{name} answers #{code}", "see the server's log; deliveries are tried again until it recovers")
      end
    end
  end
end
