# frozen_string_literal: true

require "digest"
require "openssl"
require "time"

# Judges requests as S3 does: computes the SigV4 signature from what arrived and compares. Written from the manual, apart
# from the product's code.
class S3Judge
  ACCESS_KEY = "AKIDTEST"
  SECRET = "secret/access+key=of-the-test"
  MUST_SIGN = %w[host x-amz-content-sha256 x-amz-date].freeze

  def initialize(region: "us-east-1", session_token: nil)
    @region = region
    @session_token = session_token
  end

  # Why the request is refused; nil when it is right.
  def fault(verb, target, headers, body)
    given = headers["authorization"].to_s
    scheme = %r{\AAWS4-HMAC-SHA256 Credential=(\S+?)/(\d{8})/([^/]+)/s3/aws4_request, ?SignedHeaders=(\S+?), ?Signature=(\h{64})\z}
    key, day, region, names, signature = given.match(scheme)&.captures
    return "no SigV4 header" unless signature
    return "InvalidAccessKeyId" unless key == ACCESS_KEY
    return "AuthorizationHeaderMalformed" unless region == @region
    return "InvalidToken" unless headers["x-amz-security-token"] == @session_token

    date = headers["x-amz-date"].to_s
    return "RequestTimeTooSkewed" unless date.start_with?(day) && (Time.strptime(date, "%Y%m%dT%H%M%S%z") - Time.now).abs < 900
    return "XAmzContentSHA256Mismatch" unless Digest::SHA256.hexdigest(body) == headers["x-amz-content-sha256"]

    names = names.split(";")
    must = [*MUST_SIGN, *headers.keys.grep(/\Ax-amz-/)].uniq
    return "not signed: #{(must - names).join(", ")}" unless (must - names).empty?
    return "SignedHeaders out of order" unless names == names.sort

    "SignatureDoesNotMatch" unless signature == sign(verb, target, headers, names, date, day)
  end

  private

  def sign(verb, target, headers, names, date, day)
    path, query = target.split("?", 2)
    lines = names.map { |name| "#{name}:#{headers.fetch(name, "").strip.squeeze(" ")}\n" }
    canonical = [verb, path, query.to_s.split("&").sort.join("&"), lines.join, names.join(";"),
                 headers["x-amz-content-sha256"]].join("\n")
    scope = "#{day}/#{@region}/s3/aws4_request"
    text = ["AWS4-HMAC-SHA256", date, scope, Digest::SHA256.hexdigest(canonical)].join("\n")
    key = [day, @region, "s3", "aws4_request"].inject("AWS4#{SECRET}") { |secret, part| OpenSSL::HMAC.digest("SHA256", secret, part) }
    OpenSSL::HMAC.hexdigest("SHA256", key, text)
  end
end
