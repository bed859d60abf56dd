# frozen_string_literal: true

require "openssl"
require_relative "errors"

module Ratrace
  class Receiver
    # Who may come in: with a token, whoever sends it, as `Authorization: Bearer TOKEN` or as the password of Basic (a
    # browser asks for one). Without, whoever is on this machine; then the Host header must name it, else a page of
    # another site could reach us under a name of its own that leads to 127.0.0.1.
    class Access
      TOKENS = (16..1024).freeze
      TOKEN = /\A[\x21-\x7e]+\z/.freeze
      LOCAL = /\A(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?\z/i.freeze

      # A token as found in a file or the environment.
      # @raise [ConfigurationError] which does not repeat it
      def self.token(text, from)
        token = text.to_s.strip
        return token if TOKENS.cover?(token.length) && token.match?(TOKEN)

        raise ConfigurationError, "#{from}: the token must be #{TOKENS.min} to #{TOKENS.max} printable ASCII " \
                                  "characters without spaces; make one with `openssl rand -hex 32`"
      end

      # @param token [String, nil]
      def initialize(token)
        @digest = token && digest(token)
      end

      def check(env)
        if @digest
          return if authorised?(env["HTTP_AUTHORIZATION"])

          raise Refusal.new(401, "this needs the token", "www-authenticate" => 'Basic realm="ratrace", charset="UTF-8"')
        end
        return if env["HTTP_HOST"].to_s.match?(LOCAL)

        raise Refusal.new(403, "without a token this answers to the names localhost, 127.0.0.1 and [::1] only")
      end

      # @param header [String, nil] of Authorization
      def authorised?(header)
        return true unless @digest

        scheme, value = header.to_s.split(" ", 2)
        given = case scheme.to_s.downcase
                when "bearer" then value
                when "basic" then value.to_s.unpack1("m").split(":", 2)[1]
                end
        OpenSSL.fixed_length_secure_compare(digest(given.to_s), @digest)
      end

      private

      # Of one length whatever was given, so that comparing takes one time.
      def digest(text)
        OpenSSL::Digest.digest("SHA256", text)
      end
    end
  end
end
