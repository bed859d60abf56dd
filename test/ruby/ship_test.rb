# frozen_string_literal: true

require "test_helper"
require "time"
require_relative "support/shipping"

# `ratrace ship` against a server, and a network, that do what they can.
class ShipTest < Minitest::Test
  parallelize_me!
  include Shipping

  # ---------------------------------------------------------------- when all is well

  def test_segments_are_put_under_their_names_and_removed
    dir = spool
    before = waiting(dir)
    server = server()
    outcome = ship(dir, "--to", server.url("/in/"), "--once")

    assert_predicate outcome, :success?, outcome.err
    assert_delivered before, dir, server
    assert_match(/\A#{Regexp.escape(dir)}: 3 segments delivered \([\d,]+ bytes\)\n\z/, outcome.out)
    server.requests.each do |request|
      assert_equal ["PUT", "/in/#{request.name}"], [request.verb, request.target]
      assert_equal before.fetch(request.name), request.body
      assert_equal "application/octet-stream", request.headers["content-type"]
      assert_equal "sha-256=:#{Digest::SHA256.base64digest(request.body)}:", request.headers["content-digest"]
    end
  end

  def test_the_oldest_goes_first
    dir = spool
    names = waiting(dir).keys.shuffle
    names.each_with_index { |name, i| File.utime(i, 1_700_000_000 + i, File.join(dir, name)) }
    server = server()
    ship(dir, "--to", server.url, "--once")

    assert_equal names, server.requests.map(&:name)
  end

  def test_post_goes_to_the_address_as_it_is
    dir = spool(1)
    before = waiting(dir)
    server = server()
    ship(dir, "--to", server.url("/in?team=a"), "--method", "post", "--header", "X-Team: blue", "--once")

    assert_delivered before, dir, server
    request = server.requests.first
    assert_equal ["POST", "/in?team=a", "blue"], [request.verb, request.target, request.headers["x-team"]]
  end

  def test_kept_segments_are_moved
    dir = spool
    before = waiting(dir)
    server = server()

    assert_predicate ship(dir, "--to", server.url, "--once", "--keep"), :success?
    assert_delivered before, dir, server
    assert_equal before, waiting(File.join(dir, "delivered"))
  end

  def test_an_empty_directory_is_delivered
    outcome = ship(dir, "--to", "http://127.0.0.1:1/", "--once")

    assert_predicate outcome, :success?
    assert_empty outcome.err
  end

  def test_new_segments_are_picked_up_until_a_signal_comes
    %w[TERM INT].each do |signal|
      dir = dir()
      server = server()
      before = waiting(spool)
      outcome = ship(dir, "--to", server.url) do |pid, *|
        before.each do |name, bytes|
          File.binwrite(File.join(dir, "#{name}.new"), bytes)
          File.rename(File.join(dir, "#{name}.new"), File.join(dir, name))
          until_true("#{name} arrives") { server.keys.include?(key_of(bytes)) }
        end
        until_true("the last is removed") { waiting(dir).empty? }
        Process.kill(signal, pid)
        ""
      end

      assert_predicate outcome, :success?, outcome.err
      assert_match(/SIG#{signal}: stopping/, outcome.err)
      assert_delivered before, dir, server
    end
  end

  def test_what_a_killed_process_left_is_finished_first
    dir = dir()
    run_code(<<~RUBY, dir)
      require "ratrace"
      def step; end
      Ratrace.start(out_dir: ARGV.first)
      500.times { step }
      Process.kill(:KILL, Process.pid)
    RUBY
    server = server()

    assert_predicate ship(dir, "--to", server.url, "--once"), :success?
    assert_equal 1, server.keys.size
    copy = File.join(dir(), "a.ratrace")
    File.binwrite(copy, server.bodies.values.first)
    assert_equal 500, calls_in(copy, of: ["step"])["step"]
    assert_empty Dir.glob("*.part", base: dir)
  end

  # ---------------------------------------------------------------- the network

  # What may go wrong once, twice and thrice without anything being lost.
  { refused_by_500: [500, {}, "oops"], not_available: [503, { "Retry-After" => "2" }, ""], too_many: [429, {}, ""],
    request_timeout: [408, {}, ""], reset: :reset, lost_answer: :lost_answer, garbage: :garbage }.each do |name, fault|
    define_method("test_nothing_is_lost_after_#{name}") do
      dir = spool
      before = waiting(dir)
      failed = 0
      server = server { (failed += 1) <= 3 ? fault : [200, {}, ""] }
      outcome = ship(dir, "--to", server.url, "--once")

      assert_predicate outcome, :success?, outcome.err
      assert_delivered before, dir, server
      assert_equal before.size + 3, server.requests.size
      assert_equal 3, outcome.err.scan("next try in").size
    end
  end

  def test_a_black_hole_is_left_after_a_while
    dir = spool(1)
    before = waiting(dir)
    asked = 0
    server = server { (asked += 1) == 1 ? :black_hole : [200, {}, ""] }
    outcome = ship(dir, "--to", server.url, "--once", "--timeout", "0.5")

    assert_delivered before, dir, server
    assert_match(/[Tt]ime/, outcome.err)
  end

  def test_a_slow_reader_is_waited_for
    dir = spool
    before = waiting(dir)
    server = server { :trickle }

    assert_predicate ship(dir, "--to", server.url, "--once"), :success?
    assert_delivered before, dir, server
  end

  def test_a_server_of_http_1_0_will_do
    dir = spool
    before = waiting(dir)
    server = server { :http10 }

    assert_predicate ship(dir, "--to", server.url, "--once"), :success?
    assert_delivered before, dir, server
  end

  def test_an_endless_answer_is_cut_short
    dir = spool
    before = waiting(dir)
    server = server { :endless }

    assert_predicate ship(dir, "--to", server.url, "--once"), :success?
    assert_delivered before, dir, server
  end

  { connect: "http://127.0.0.1:1/", resolve: "http://no-such-host.invalid/" }.each do |name, url|
    define_method("test_without_#{name}_all_stays_and_it_fails") do
      dir = spool
      before = waiting(dir)
      outcome = ship(dir, "--to", url, "--once")

      assert_equal 1, outcome.status.exitstatus
      assert_equal before, waiting(dir)
      assert_equal 5, outcome.err.scan("next try in").size
      assert_match(/3 still waiting/, outcome.out)
      assert_match(/last error: .*#{name == :resolve ? "resolve host" : "connect"}/i, outcome.err)
    end
  end

  # ---------------------------------------------------------------- refusals

  { 400 => "bad request", 413 => "too large", 422 => "no" }.each do |status, text|
    define_method("test_#{status}_is_poison_and_blocks_nobody") do
      dir = spool
      before = waiting(dir)
      refused = before.keys.min
      server = server { |request| request.name == refused ? [status, {}, text] : [200, {}, ""] }
      outcome = ship(dir, "--to", server.url, "--once")

      assert_equal 1, outcome.status.exitstatus
      assert_match(/#{refused} is refused for good \(HTTP #{status}: #{text}\)/, outcome.err)
      assert_equal before.slice(refused), waiting(File.join(dir, "poison")).transform_keys { |name| name.delete_prefix("#{status}-") }
      File.delete(File.join(dir, "poison", "#{status}-#{refused}"))
      assert_delivered before.except(refused), dir, server
      assert_equal before.size, server.requests.size, "it was tried again"
    end
  end

  def test_an_early_413_is_heard
    dir = spool(1)
    File.open(File.join(dir, waiting(dir).keys.first), "ab") { |file| file.write("\0" * 3_000_000) }
    server = server { :early }
    ship(dir, "--to", server.url, "--once")

    assert_equal 1, server.requests.size
    assert_empty waiting(dir)
    assert_equal 1, waiting(File.join(dir, "poison")).size
  end

  def test_what_is_no_segment_is_poison_and_is_not_sent
    dir = spool
    before = waiting(dir)
    File.write(File.join(dir, "notes.ratrace"), "my private notes")
    server = server()
    ship(dir, "--to", server.url, "--once")

    assert_delivered before, dir, server
    assert_equal ["bad-notes.ratrace"], Dir.children(File.join(dir, "poison"))
  end

  def test_redirects_are_not_followed
    dir = spool(1)
    before = waiting(dir)
    elsewhere = server()
    server = server { [307, { "Location" => "#{elsewhere.url("/there")}?signature=sesame" }, ""] }
    outcome = ship(dir, "--to", server.url, "--once", env: { "RATRACE_SHIP_TOKEN" => "sesame-open" })

    assert_equal 1, outcome.status.exitstatus
    assert_empty elsewhere.requests
    assert_equal before, waiting(dir)
    assert_match(%r{redirects to http://127.0.0.1:#{elsewhere.port}/there; give that address}, outcome.err)
    refute_match(/sesame/, outcome.err)
  end

  # As long as nobody's segments are taken, it is the configuration.
  def test_wrong_credentials_poison_nothing
    [401, 403, 404].each do |status|
      dir = spool
      before = waiting(dir)
      server = server { [status, {}, ""] }
      outcome = ship(dir, "--to", server.url, "--once")

      assert_equal [1, before], [outcome.status.exitstatus, waiting(dir)]
      refute_path_exists File.join(dir, "poison")
    end
  end

  # A segment that fails each time, while others come and go, is not tried for ever and keeps nobody waiting.
  def test_a_segment_that_breaks_the_server_is_given_up_while_others_are_delivered
    dir = spool
    before = waiting(dir)
    bad = before.keys.min
    File.utime(0, 0, File.join(dir, bad))
    server = server { |request| request.name == bad ? [500, {}, ""] : [200, {}, ""] }
    ship(dir, "--to", server.url, env: { "RATRACE_SHIP_TIME_SCALE" => "10000" }) do |pid, *|
      (before.keys - [bad]).cycle(10).with_index do |name, i|
        break if Dir.exist?(File.join(dir, "poison"))

        File.binwrite(File.join(dir, "tmp"), before[name])
        File.rename(File.join(dir, "tmp"), File.join(dir, "again-#{i}.ratrace"))
        until_true("again-#{i} is delivered") { !File.exist?(File.join(dir, "again-#{i}.ratrace")) }
        tries = server.requests.count { |request| request.name == bad }
        until_true("it is tried after each") do
          Dir.exist?(File.join(dir, "poison")) || server.requests.count { |request| request.name == bad } > tries
        end
      end
      Process.kill(:TERM, pid)
      ""
    end

    assert_equal ["500-#{bad}"], Dir.children(File.join(dir, "poison"))
    assert_empty waiting(dir)
  end

  # ---------------------------------------------------------------- TLS and proxies

  def test_tls_is_verified
    ca = Certificates.new
    pem = File.join(dir, "ca.pem").tap { |path| File.write(path, ca.to_pem) }
    hour = Certificates::HOUR
    { "of a known CA" => [ca.context, true], "for another host" => [ca.context(name: "DNS:other.example"), false],
      "expired" => [ca.context(from: Time.now - 2 * hour, to: Time.now - hour), false],
      "of an unknown CA" => [Certificates.new("somebody").context, false] }.each do |what, (context, good)|
      dir = spool(1)
      before = waiting(dir)
      server = server(context: context)
      outcome = ship(dir, "--to", server.url, "--ca-file", pem, "--once", env: { "RATRACE_SHIP_TOKEN" => "sesame-open" })

      assert_equal good, outcome.success?, "#{what}: #{outcome.err}"
      assert_equal good ? 1 : 0, server.requests.size, what
      assert_equal before, waiting(dir) unless good
      assert_match(/SSL|certificate/, outcome.err, what) unless good
    end
  end

  def test_without_a_ca_file_the_systems_certificates_count
    server = server(context: Certificates.new.context)
    dir = spool(1)

    assert_equal 1, ship(dir, "--to", server.url, "--once").status.exitstatus
    assert_empty server.requests
  end

  def test_proxies_are_used_by_option_and_by_environment
    [[["--proxy"], {}], [[], "http_proxy"]].each do |option, variable|
      dir = spool(1)
      before = waiting(dir)
      proxy = server()
      option = option.map { |name| [name, proxy.url("")] }.flatten
      env = variable.is_a?(String) ? { variable => proxy.url("") } : {}
      outcome = ship(dir, "--to", "http://receiver.invalid/in", "--once", *option, env: env)

      assert_predicate outcome, :success?, outcome.err
      assert_delivered before, dir, proxy
      assert_equal "http://receiver.invalid/in/#{before.keys.first}", proxy.requests.first.target
    end
  end

  def test_no_proxy_for_hosts_that_need_none
    dir = spool(1)
    server = server()
    env = { "http_proxy" => "http://127.0.0.1:1", "no_proxy" => "127.0.0.1" }

    assert_predicate ship(dir, "--to", server.url, "--once", env: env), :success?
    assert_equal 1, server.requests.size
  end

  # ---------------------------------------------------------------- outages

  # An hour without a server, a thousand times faster.
  def test_an_hour_of_outage_loses_nothing_and_is_not_hammered_at
    dir = spool
    before = waiting(dir)
    over = false
    server = server { over ? [200, {}, ""] : [503, {}, ""] }
    outcome = ship(dir, "--to", server.url, env: { "RATRACE_SHIP_TIME_SCALE" => "1000" }) do |pid, *|
      sleep 3.6
      until_true("the outage is told of") { server.requests.size >= 5 }
      over = true
      until_true("all is delivered") { waiting(dir).empty? }
      Process.kill(:TERM, pid)
      ""
    end

    assert_delivered before, dir, server
    failures = server.requests.size - before.size
    assert_operator failures, :<, 300 # once a second would be 3600
    waits = outcome.err.scan(/next try in ([\d.]+) s/).flatten.map(&:to_f)
    waits.each_with_index { |wait, i| assert_operator wait, :<=, [300, 2**i].min + 0.05 }
    assert_equal waits.size, waits.uniq.size, "no jitter" if waits.size < 10
    assert_match(/segments are being delivered again/, outcome.err)
  end

  def test_retry_after_is_obeyed
    { "5" => 5, (Time.now + 900).httpdate => 800 }.each do |value, least|
      dir = spool(1)
      asked = 0
      server = server { (asked += 1) == 1 ? [503, { "Retry-After" => value }, ""] : [200, {}, ""] }
      outcome = ship(dir, "--to", server.url, "--once", env: { "RATRACE_SHIP_TIME_SCALE" => "10000" })

      assert_operator outcome.err[/next try in ([\d.]+) s/, 1].to_f, :>=, least
      assert_equal 2, server.requests.size
    end
  end

  def test_the_spool_is_bounded_in_an_outage_and_the_loss_is_told_once
    dir = spool
    sizes = waiting(dir).transform_values(&:bytesize)
    newest = sizes.keys.max_by { |name| [File.mtime(File.join(dir, name)), name] }
    outcome = ship(dir, "--to", "http://127.0.0.1:1/", "--once", "--spool-bytes", sizes[newest].to_s)

    assert_equal [newest], waiting(dir).keys
    assert_equal 1, outcome.err.scan(/exceeds its bounds: 2 of the oldest segments dropped/).size
    assert_match(/2 dropped/, outcome.out)
  end

  def test_segments_that_are_too_old_are_dropped
    dir = spool
    old = waiting(dir).keys.first
    File.utime(0, Time.now - 100, File.join(dir, old))
    server = server()
    outcome = ship(dir, "--to", server.url, "--once", "--spool-age", "50")

    assert_equal 1, outcome.status.exitstatus
    assert_equal 2, server.requests.size
    refute_includes server.requests.map(&:name), old
  end

  # ---------------------------------------------------------------- the end

  def test_a_signal_ends_an_upload_that_hangs_within_the_deadline
    dir = spool
    before = waiting(dir)
    server = server { :black_hole }
    took = nil
    outcome = ship(dir, "--to", server.url, "--deadline", "0.5", env: { "RATRACE_SHIP_TIME_SCALE" => "1" }) do |pid, *|
      until_true("it is uploading") { server.requests.any? }
      started = now
      Process.kill(:TERM, pid)
      Process.wait(pid) rescue nil
      until_true("it has ended") { !alive?(pid) }
      took = now - started
      ""
    end

    assert_operator took, :<, 10, "the request's own time limit is 600 s"
    assert_equal before, waiting(dir)
    assert_match(/stopping, within 0.5 s/, outcome.err)
    assert_match(/3 still waiting/, outcome.out)
  end

  # ---------------------------------------------------------------- mistakes

  def test_mistakes_are_one_line_and_end_with_2
    dir = dir()
    { [dir] => /no --to/, ["--to", "http://h/"] => /give one directory/,
      [dir, "--to", "ftp://h/"] => %r{url: ftp://h/ is not allowed; use http://.*https://.*s3://BUCKET/PREFIX\n},
      [dir, "--to", "http:///x"] => /url: .* is not allowed/,
      [dir, "--to", "http://joe:sesame@h/"] => %r{url: http://h/ must not carry a user or password},
      [dir, "--to", "http://h/", "--method", "get"] => /method: "GET" is not allowed; use PUT or POST/,
      [dir, "--to", "http://h/", "--header", "nonsense"] => /headers: one is not of the form/,
      [dir, "--to", "http://h/", "--header", "Host: x"] => /headers: Host is set by ratrace itself/,
      [dir, "--to", "http://h/", "--header", "Authorization: Bearer sesame"] => /is a secret/,
      [dir, "--to", "http://h/", "--proxy", "http://joe:sesame@h/"] => /put a proxy with a password into https_proxy/,
      [dir, "--to", "http://h/", "--finalize-url", "h"] => %r{finalize_url: h is not allowed; use http://\S+ or https://\S+\n},
      [dir, "--to", "s3://b/p"] => /set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY/,
      [dir, "--to", "s3://b%2Fc"] => /s3 bucket: "b%2Fc" is not allowed/,
      [dir, "--to", "http://h/", "--timeout", "soon"] => /invalid argument/ }.each do |arguments, complaint|
      out, err, status = ratrace_in_process("ship", *arguments)

      assert_equal ["", 2, 1], [out, status, err.lines.size], "#{arguments}: #{err}"
      assert_match(complaint, err)
      refute_match(/sesame/, err)
    end
  end

  def test_a_port_that_is_none_is_told_at_once
    %w(http://h:99999/ http://h:0/ http://h:abc/x http://h:/ http://[::1/ http://[::1]x/).each do |url|
      out, err, status = ratrace_in_process("ship", dir, "--to", url, "--once")

      assert_equal ["", 2], [out, status], url
      assert_match(/url: .* is not allowed; use .* with a port between 1 and 65535\n/, err)
    end
  end

  def test_a_token_does_not_go_over_plain_http
    %w[http://example.com/ http://127.0.0.1.example.com/ http://localhost.example.com:80/].each do |url|
      _, err, status = ratrace_in_process("ship", dir, "--to", url, env: { "RATRACE_SHIP_TOKEN" => "sesame-open" })

      assert_equal 2, status
      assert_match(/token: goes over https only/, err)
    end
  end

  def test_a_missing_directory_is_a_failure
    out, err, status = ratrace_in_process("ship", "/no/such/dir", "--to", "http://h/")

    assert_equal ["", "ratrace: ship: /no/such/dir: no such directory\n", 1], [out, err, status]
  end

  private

  def alive?(pid)
    Process.kill(0, pid) && File.read("/proc/#{pid}/stat") !~ /\) Z /
  rescue SystemCallError
    false
  end

  # Mistakes are found before anything is started.
  def ratrace_in_process(*arguments, env: {})
    require "ratrace/cli"
    out = StringIO.new
    err = StringIO.new
    status = Ratrace::CLI.new(out: out, err: err, env: env).run(arguments)
    [out.string, err.string, status]
  end
end
