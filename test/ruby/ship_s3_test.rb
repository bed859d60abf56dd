# frozen_string_literal: true

require "test_helper"
require_relative "support/s3_judge"
require_relative "support/shipping"

# S3-compatible storage, as a server that verifies each signature sees it.
class ShipS3Test < Minitest::Test
  parallelize_me!
  include Shipping

  KEYS = { "AWS_ACCESS_KEY_ID" => S3Judge::ACCESS_KEY, "AWS_SECRET_ACCESS_KEY" => S3Judge::SECRET,
           "AWS_SESSION_TOKEN" => nil, "AWS_REGION" => nil, "AWS_DEFAULT_REGION" => nil, "AWS_ENDPOINT_URL" => nil }.freeze

  def test_objects_are_signed_in_path_style
    dir = spool
    before = waiting(dir)
    server = storage
    outcome = ship_s3(dir, "s3://traces/shop", server.url(""), "--s3-path-style")

    assert_predicate outcome, :success?, outcome.err
    assert_delivered before, dir, server
    assert_equal before.keys.map { |name| "/traces/shop/#{name}" }.sort, server.requests.map(&:target).sort
  end

  # libcurl takes every host below localhost for this machine.
  def test_objects_are_signed_in_virtual_host_style
    dir = spool
    before = waiting(dir)
    server = storage
    outcome = ship_s3(dir, "s3://traces", "http://localhost:#{server.port}")

    assert_predicate outcome, :success?, outcome.err
    assert_delivered before, dir, server
    assert_equal ["traces.localhost:#{server.port}"], server.requests.map { |request| request.headers["host"] }.uniq
    assert_equal before.keys.map { |name| "/#{name}" }.sort, server.requests.map(&:target).sort
  end

  def test_any_prefix_is_encoded_as_it_is_signed
    ["a b/c", "ä/ü", "a+b=c&d", "100%/x", "a//b/../c/./d", "~x_y-z.w", "(p)/!*'"].each do |prefix|
      dir = spool(1)
      before = waiting(dir)
      server = storage
      outcome = ship_s3(dir, "s3://traces/#{prefix}", server.url(""), "--s3-path-style")

      assert_predicate outcome, :success?, "#{prefix}: #{outcome.err}"
      assert_equal "/traces/#{prefix}/#{before.keys.first}".b, decode(server.requests.first.target)
    end
  end

  def test_session_tokens_regions_and_headers_are_signed
    dir = spool(1)
    server = storage(region: "eu-central-1", session_token: "token-of-the-session")
    outcome = ship_s3(dir, "s3://traces", server.url(""), "--s3-path-style", "--s3-region", "eu-central-1",
                      "--header", "x-amz-storage-class: STANDARD_IA", "--header", "X-Other: y",
                      env: { "AWS_SESSION_TOKEN" => "token-of-the-session" })

    assert_predicate outcome, :success?, outcome.err
    headers = server.requests.first.headers
    assert_equal ["STANDARD_IA", nil], headers.values_at("x-amz-storage-class", "x-other")
    assert_includes headers["authorization"], "x-amz-storage-class"
  end

  def test_the_storage_over_tls
    ca = Certificates.new
    pem = File.join(dir, "ca.pem").tap { |path| File.write(path, ca.to_pem) }
    dir = spool
    before = waiting(dir)
    server = storage(context: ca.context)

    assert_predicate ship_s3(dir, "s3://traces", server.url(""), "--s3-path-style", "--ca-file", pem), :success?
    assert_delivered before, dir, server
  end

  def test_a_wrong_secret_poisons_nothing_and_is_not_shown
    dir = spool(1)
    before = waiting(dir)
    server = storage
    outcome = ship_s3(dir, "s3://traces", server.url(""), "--s3-path-style",
                      env: { "AWS_SECRET_ACCESS_KEY" => "sesame-of-somebody" })

    assert_equal [1, before], [outcome.status.exitstatus, waiting(dir)]
    assert_match(/HTTP 403: <Code>SignatureDoesNotMatch/, outcome.err)
    refute_match(/sesame/, outcome.err + outcome.out)
  end

  def test_metadata_is_told_once_the_object_is_stored
    dir = spool
    before = waiting(dir)
    server = storage
    receiver = server()
    outcome = ship_s3(dir, "s3://traces/shop", server.url(""), "--s3-path-style", "--finalize-url", receiver.url("/finalize"),
                      env: { "RATRACE_SHIP_TOKEN" => "of-the-receiver" })

    assert_predicate outcome, :success?, outcome.err
    assert_equal server.requests.map(&:key), receiver.requests.map(&:key)
    assert_equal ["Bearer of-the-receiver"], receiver.requests.map { |request| request.headers["authorization"] }.uniq
    told = receiver.requests.map { |request| JSON.parse(request.body) }
    assert_equal before.keys.map { |name| "shop/#{name}" }.sort, told.map { |metadata| metadata["object"] }.sort
    assert_equal server.requests.map { |request| server.url(request.target) }, told.map { |metadata| metadata["url"] }
  end

  # A storage that cannot be finalized with is tried again, and the object is written again as it was.
  def test_the_object_is_the_same_when_only_finalize_failed
    dir = spool(1)
    before = waiting(dir)
    server = storage
    asked = 0
    receiver = server { (asked += 1) <= 2 ? [503, {}, ""] : [200, {}, ""] }

    assert_predicate ship_s3(dir, "s3://traces", server.url(""), "--s3-path-style", "--finalize-url", receiver.url), :success?
    assert_equal [3, 3], [server.requests.size, receiver.requests.size]
    assert_equal 1, server.requests.map { |request| [request.target, request.body, request.key] }.uniq.size
    assert_equal [key_of(before.values.first)], receiver.requests.map(&:key).uniq
  end

  private

  def storage(context: nil, **account)
    judge = S3Judge.new(**account)
    server(context: context) do
      lambda do |request|
        fault = judge.fault(request.verb, request.target, request.headers, request.body)
        fault ? [403, {}, "<Code>#{fault}</Code>"] : [200, {}, ""]
      end
    end
  end

  def ship_s3(dir, to, endpoint, *arguments, env: {})
    ship(dir, "--to", to, "--s3-endpoint", endpoint, "--once", *arguments, env: { **KEYS, **env })
  end

  def decode(target)
    target.b.gsub(/%(\h\h)/) { $1.hex.chr }
  end
end
