# frozen_string_literal: true

require "test_helper"
require "time"
require_relative "support/shipping"

# Several shippers on one directory, shippers that are killed, and secrets.
class ShipOwnerTest < Minitest::Test
  parallelize_me!
  include Shipping

  def test_two_at_once_deliver_each_segment_once
    dir = spool(12)
    before = waiting(dir)
    server = server { sleep(0.01) && [200, {}, ""] }
    pids = Array.new(2) { ship_in_background(dir, "--to", server.url) }
    until_true("all is delivered") { waiting(dir).empty? }
    pids.each { |pid| end_process(pid, :TERM) }

    assert_delivered before, dir, server
    assert_equal before.size, server.requests.size, "one was delivered by both"
  end

  def test_nothing_is_lost_when_both_are_killed_again_and_again
    dir = spool(12)
    before = waiting(dir)
    server = server { :trickle }
    4.times do |round|
      pids = Array.new(2) { ship_in_background(dir, "--to", server.url) }
      arrived = server.requests.size
      until_true("both are at work in round #{round}") { server.requests.size >= arrived + 2 }
      pids.each { |pid| end_process(pid) }
    end

    assert_predicate ship(dir, "--to", server.url, "--once"), :success?
    assert_delivered before, dir, server
  end

  # The only one that knows of the segment dies between the upload and the finalize.
  def test_a_kill_between_upload_and_finalize_is_made_good_under_the_same_key
    dir = spool(1)
    before = waiting(dir)
    finalizing = 0
    server = server do |request|
      request.target == "/finalize" && (finalizing += 1) == 1 ? :black_hole : [200, {}, ""]
    end
    pid = ship_in_background(dir, "--to", server.url, "--finalize-url", server.url("/finalize"))
    until_true("it finalizes") { finalizing == 1 }
    end_process(pid)
    assert_equal before, waiting(dir)

    assert_predicate ship(dir, "--to", server.url, "--finalize-url", server.url("/finalize"), "--once"), :success?
    assert_empty waiting(dir)
    assert_equal %w[PUT POST PUT POST], server.requests.map(&:verb)
    assert_equal [key_of(before.values.first)], server.requests.map(&:key).uniq
  end

  def test_metadata_is_told_after_each_segment
    dir = spool
    before = waiting(dir)
    server = server()
    ship(dir, "--to", server.url, "--finalize-url", server.url("/finalize"), "--once")

    server.requests.each_slice(2) do |upload, finalize|
      assert_equal [upload.key, "POST", "/finalize"], [finalize.key, finalize.verb, finalize.target]
      metadata = JSON.parse(finalize.body)
      content = before.fetch(upload.name)
      account = account_of(File.join(dir().tap { |place| File.binwrite(File.join(place, upload.name), content) }, upload.name))
      session = account[:sessions].first

      assert_equal upload.name, metadata["name"]
      assert_equal server.url("/in/#{upload.name}"), metadata["url"]
      assert_equal upload.key, "#{metadata["session"]}-#{format("%06d", metadata["segment"])}"
      assert_equal [content.bytesize, Digest::SHA256.hexdigest(content)], metadata.values_at("bytes", "sha256")
      assert_equal session[:lanes].sum { |lane| lane[:decoded] }, metadata["events"]
      assert_equal session.values_at(:service, :host, :pid), metadata.values_at("service", "host", "pid")
      assert_operator Time.parse(metadata["start"]), :<, Time.parse(metadata["end"])
    end
  end

  def test_a_failed_finalize_is_a_failed_delivery
    dir = spool(1)
    before = waiting(dir)
    asked = 0
    server = server { |request| request.target == "/finalize" && (asked += 1) <= 2 ? [500, {}, ""] : [200, {}, ""] }

    assert_predicate ship(dir, "--to", server.url, "--finalize-url", server.url("/finalize"), "--once"), :success?
    assert_empty waiting(dir)
    assert_equal %w[PUT POST] * 3, server.requests.map(&:verb)
    assert_equal [key_of(before.values.first)], server.requests.map(&:key).uniq
  end

  # A server that repeats all it heard, in answers that are failures.
  def test_secrets_are_in_no_output
    secrets = %w[sesame-token-1 sesame-header-2 sesame-proxy-3]
    file = File.join(dir, "token").tap { |path| File.write(path, "#{secrets[0]}\n", perm: 0o600) }
    [400, 401, 500].each do |status|
      dir = spool(1)
      server = server { |request| [status, {}, request.headers.map { |pair| pair.join(": ") }.join("\n")] }
      outcome = ship(dir, "--to", server.url, "--token-file", file, "--once",
                     env: { "RATRACE_SHIP_HEADERS" => "X-Key: #{secrets[1]}\n\n", "RATRACE_DEBUG" => "1" })

      assert_equal ["Bearer #{secrets[0]}", secrets[1]], server.requests.first.headers.values_at("authorization", "x-key")
      assert_match(/\[secret\]/, outcome.err)
      refute_match(/sesame/, outcome.err + outcome.out)
    end
    proxied = ship(spool(1), "--to", "http://receiver.invalid/", "--once",
                   env: { "http_proxy" => "http://joe:#{secrets[2]}@127.0.0.1:1" })

    refute_match(/sesame/, proxied.err + proxied.out)
  end
end
