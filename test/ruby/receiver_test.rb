# frozen_string_literal: true

require_relative "recording_helper"
require_relative "support/hostile_segment"
require_relative "support/serving"
require "ratrace/receiver"

# The receiver, on the real Puma, on loopback, under real and hostile requests.
class ReceiverTest < Minitest::Test
  include RecordingHelper
  parallelize_me!

  TOKEN = "a token of this test".tr(" ", "-").freeze
  NAME = "shop-web-20260101T000000Z-1-00000001-000001.ratrace"
  OTHER = "shop-web-20260101T000000Z-1-00000001-000002.ratrace"

  EVIL = <<~'RUBY'
    class Evil
      define_method(:"<script>alert(1)</script>") { }
      define_method(:"\"'&\e[31m") { }
    end
    Evil.new.send(:"<script>alert(1)</script>")
    Evil.new.send(:"\"'&\e[31m")
    Thread.new { Thread.current.name = "<img src=x onerror=alert(1)>"; Evil.new.send(:"<script>alert(1)</script>") }.join
  RUBY

  def self.segment(program)
    @lock ||= Mutex.new
    @segments ||= {}
    @lock.synchronize do
      @segments[program] ||= begin
        dir = RecordingHelper.of(program)
        File.binread(File.join(dir, Dir.children(dir).first))
      end
    end
  end

  def segment
    self.class.segment(SHOP)
  end

  def other
    self.class.segment("def step; end\n1000.times { step }\n")
  end

  def serving(*options, token: nil)
    dir = File.join(Dir.mktmpdir("ratrace-serve"), "received")
    server = Serving.new(dir, *options, token: token)
    yield server
  ensure
    server&.stop
    refute_match(/: warning: /, server.log) if server
    FileUtils.rm_rf(File.dirname(dir))
  end

  def assert_refused(status, answer, pattern = nil)
    assert_equal status, answer.status, answer.body
    assert_match(/\A[^\n]+\n\z/, answer.body)
    assert_match pattern, answer.body if pattern
  end

  # ------------------------------------------------------------ storing

  def test_a_segment_is_stored_as_it_was_sent
    serving do |server|
      answer = server.put(NAME, segment, key: "one")

      assert_equal [201, NAME, "stored"], [answer.status, *answer.json.values_at("name", "status")]
      assert_equal segment, File.binread(File.join(server.dir, NAME))
      assert_equal segment, server.get("/segments/#{NAME}").body
      assert_empty server.leftovers
      assert_equal "ok: every event is accounted for", ratrace!("verify", server.dir).lines(chomp: true).last
      modes = [".", *Dir.children(server.dir)].sort.to_h { |name| [name, File.stat(File.join(server.dir, name)).mode & 0o7777] }
      assert_equal({ "." => 0o700, ".lock" => 0o600, ".spool" => 0o700, NAME => 0o600, "#{NAME}.json" => 0o600 }, modes)
    end
  end

  def test_a_name_is_made_for_a_segment_without_one
    serving do |server|
      answer = server.request("POST", "/segments", body: segment, type: "application/octet-stream")

      assert_equal 201, answer.status
      assert_match(/\Aprogram-\S+-\d{8}T\d{6}Z-\d+-\h{8}-000001\.ratrace\z/, answer.json["name"])
      assert_equal [answer.json["name"]], server.names
    end
  end

  def test_the_same_key_stores_once_also_after_a_restart
    serving do |server|
      server.put(NAME, segment, key: "one")
      again = -> { [server.put(NAME, segment, key: "one"), server.put(OTHER, segment, key: "one")].map(&:status) }
      before = again.call
      server.restart

      assert_equal [[200, 200]] * 2, [before, again.call]
      assert_refused 409, server.put(OTHER, other, key: "one"), /Idempotency-Key/
      assert_refused 409, server.put(NAME, other, key: "two"), /this name/
      assert_equal [NAME], server.names
    end
  end

  def test_uploads_of_one_key_at_one_time_store_once
    serving do |server|
      statuses = Array.new(6) { Thread.new { server.put(NAME, segment, key: "one").status } }.map(&:value)

      assert_equal [200] * 5 + [201], statuses.sort
      assert_equal [NAME], server.names
      assert_equal 1, server.log.scan(/^stored /).size
    end
  end

  def test_a_chunked_body_is_taken
    serving do |server|
      chunks = segment.b.scan(/.{1,700}/mn).map { |piece| "#{piece.bytesize.to_s(16)}\r\n#{piece}\r\n" }.join
      answer = server.raw("PUT /segments/#{NAME} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n" \
                          "Transfer-Encoding: chunked\r\n\r\n#{chunks}0\r\n\r\n".b)

      assert_equal 201, answer.status
      assert_equal segment, File.binread(File.join(server.dir, NAME))
    end
  end

  def test_what_ship_delivers_is_stored_and_finalized
    serving(token: TOKEN) do |server|
      Dir.mktmpdir do |dir|
        [[NAME, segment], [OTHER, other]].each { |name, bytes| File.binwrite(File.join(dir, name), bytes) }
        url = "http://127.0.0.1:#{server.port}"
        text, status = Open3.capture2e({ "RATRACE_SHIP_TOKEN" => TOKEN }, RbConfig.ruby, "-w", EXE, "ship", dir, "--once",
                                       "--to", "#{url}/segments", "--finalize-url", "#{url}/finalize")

        assert_predicate status, :success?, text
        assert_empty Dir.children(dir).grep(/ratrace\z/)
        assert_equal [segment, other], [NAME, OTHER].map { |name| File.binread(File.join(server.dir, name)) }
        told = server.get("/recordings.json").json["recordings"]
        assert_equal told.map { |record| record["sha256"] }, told.map { |record| record["metadata"]["sha256"] }
      end
    end
  end

  def test_removed_recordings_are_forgotten
    serving("--max-disk", (segment.bytesize + 1200).to_s) do |server|
      server.put(NAME, segment)
      assert_refused 507, server.put(OTHER, other)
      File.unlink(File.join(server.dir, NAME))

      assert_empty server.get("/recordings.json").json["recordings"]
      assert_equal 201, server.put(OTHER, other).status
    end
  end

  def test_what_a_crash_left_is_removed_and_what_is_whole_is_taken_in
    serving do |server|
      server.stop(:KILL)
      File.binwrite(File.join(server.dir, ".upload-1234"), segment)
      File.binwrite(File.join(server.dir, ".spool/puma1"), segment)
      File.binwrite(File.join(server.dir, "#{OTHER}.json"), "{}")
      File.binwrite(File.join(server.dir, NAME), segment)
      server.start

      assert_empty server.leftovers
      assert_equal [NAME], server.get("/recordings.json").json["recordings"].map { |record| record["name"] }
      refute_path_exists File.join(server.dir, "#{OTHER}.json")
    end
  end

  def test_a_kill_in_the_middle_of_an_upload_leaves_nothing_to_be_seen
    serving do |server|
      socket = server.connect
      socket.write("PUT /segments/#{NAME} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n" \
                   "Content-Length: 3000000\r\n\r\n".b, "x" * 2_000_000)
      within { sleep 0.02 until reading(server) > 500_000 }
      server.restart(:KILL)

      assert_equal %w[.lock .spool], Dir.children(server.dir).sort
      assert_empty Dir.children(File.join(server.dir, ".spool"))
      assert_empty server.get("/recordings.json").json["recordings"]
    ensure
      socket&.close
    end
  end

  # ------------------------------------------------------------ what does not verify

  def test_damaged_and_foreign_bytes_are_refused_and_not_kept
    torn = segment[0, segment.bytesize - 10]
    flipped = segment.dup.tap { |bytes| bytes.setbyte(at = bytes.bytesize / 2, bytes.getbyte(at) ^ 1) }
    serving do |server|
      { torn => /middle of a chunk/, flipped => /damaged|missing/, File.binread(__FILE__) => /damaged/ }.each do |bytes, why|
        assert_refused 422, server.put(NAME, bytes, key: "bad"), why
      end
      assert_refused 400, server.put(NAME, "")
      assert_equal %w[.lock .spool], Dir.children(server.dir).sort
      assert_equal 201, server.put(NAME, segment, key: "bad").status
    end
  end

  def test_bodies_that_unpack_to_gigabytes_are_refused_at_the_price_of_their_size
    told = HostileSegment.zeros(2**31, told: true)
    untold = HostileSegment.zeros(2**31, told: false)
    bombs = [HostileSegment.with_body(told, raw_bytes: 2**31), HostileSegment.with_body(told, raw_bytes: 64 * 1024**2),
             HostileSegment.with_body(untold, raw_bytes: 64 * 1024**2), HostileSegment.with_body(untold, raw_bytes: 2**32 - 1)]
    serving do |server|
      bombs.each { |bomb| assert_refused 422, server.put(NAME, bomb) }
      assert_operator peak_kib(server), :<, 200 * 1024
      assert_empty server.names
    end
  end

  # 6 MB that ask for minutes of unpacking.
  def test_reading_has_an_end
    bomb = HostileSegment.with_body(HostileSegment.zeros(64 * 1024**2, told: true), raw_bytes: 64 * 1024**2, times: 1000)
    Tempfile.create("ratrace-bomb", binmode: true) do |file|
      file.write(bomb)
      file.flush
      error = assert_raises(Ratrace::Receiver::Refusal) { Ratrace::Receiver::Verifier.new(seconds_max: 0.2).summary(file.path) }
      assert_match(/longer than 0.2 s/, error.message)
    end
  end

  # ------------------------------------------------------------ bounds

  def test_too_large_a_segment_is_refused_before_it_is_sent
    serving("--max-segment", "200K") do |server|
      assert_refused 413, server.put(NAME, "", length: 204_801), /204800 bytes/
      assert_refused 413, server.put(NAME, "x" * 204_801), /204800 bytes/
      assert_refused 422, server.put(NAME, "x" * 204_800)
    end
  end

  def test_a_chunked_body_without_end_is_cut
    serving("--max-segment", "1M") do |server|
      answer, sent = send_for_ever(server, server.head(host: "localhost", content_type: "application/octet-stream"))

      assert_refused 413, answer
      assert_operator sent, :<, 20 * 1024**2
      assert_equal 422, server.put(NAME, "x" * 1000).status # others go on
      within { sleep 0.02 until used(server).zero? }
    end
  end

  def test_the_disk_has_a_bound_for_what_is_stored_and_what_is_coming
    serving("--max-disk", "2M") do |server|
      assert_refused 507, server.put(NAME, "x" * 3_000_000), /--max-disk/
      assert_equal 201, server.put(NAME, segment).status
      within { sleep 0.02 until used(server) < 100_000 }
    end
  end

  def test_a_slow_upload_is_cut
    serving("--upload-timeout", "1") do |server|
      socket = server.connect
      socket.write("PUT /segments/#{NAME} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n" \
                   "Content-Length: 100000\r\n\r\n")
      dripping = Thread.new { loop { socket.write("x") && sleep(0.1) } rescue nil }
      assert_refused 408, server.answer(socket)
    ensure
      dripping&.kill
      socket&.close
    end
  end

  def test_only_so_many_uploads_at_a_time
    serving("--max-uploads", "1") do |server|
      held = server.connect
      held.write("PUT /segments/#{NAME} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n" \
                 "Content-Length: #{segment.bytesize}\r\nExpect: 100-continue\r\n\r\n")
      assert_equal ["HTTP/1.1 100 Continue\r\n", "\r\n"], within { Array.new(2) { held.gets } } # it has taken this one
      answer = server.put(OTHER, other)
      held.write(segment)

      assert_equal [503, "1"], [answer.status, answer.headers["retry-after"]]
      assert_equal 201, server.answer(held).status
      within { sleep 0.02 until [200, 201].include?(server.put(OTHER, other).status) }
    ensure
      held&.close
    end
  end

  # ------------------------------------------------------------ who may, and what

  def test_without_the_token_there_is_nothing
    serving(token: TOKEN) do |server|
      [nil, "Bearer wrong", "Bearer #{TOKEN}x", "Bearer", "Basic #{["x:wrong"].pack("m0")}", "Basic !", TOKEN].each do |auth|
        %w[/ /recordings.json /segments/x.ratrace /recordings/x.ratrace /nothing].each do |path|
          assert_refused 401, server.get(path, auth: auth)
        end
        assert_refused 401, server.put(NAME, segment, auth: auth)
      end
      assert_equal [200, "ok\n"], server.get("/health", auth: nil).then { |answer| [answer.status, answer.body] }
      assert_match(/\ABasic /, server.get("/", auth: nil).headers["www-authenticate"])
      assert_equal 200, server.get("/", auth: "Basic #{["me:#{TOKEN}"].pack("m0")}").status
      assert_equal 201, server.put(NAME, segment).status
      refute_includes server.log, TOKEN
      refute_includes File.read("/proc/#{server.pid}/cmdline"), TOKEN
    end
  end

  def test_without_the_token_little_is_taken
    serving(token: TOKEN) do |server|
      answer, sent = send_for_ever(server, server.head(host: "localhost", content_type: "application/octet-stream"))

      assert_refused 401, answer
      assert_operator sent, :<, 20 * 1024**2
      assert_refused 401, server.put(NAME, "", auth: "Bearer wrong", length: 10_000_000)
    end
  end

  def test_a_token_comes_from_a_file
    Dir.mktmpdir do |dir|
      file = File.join(dir, "token")
      File.write(file, "#{TOKEN}\n")
      serving("--token-file", file) do |server|
        assert_equal [401, 200], [nil, "Bearer #{TOKEN}"].map { |auth| server.get("/", auth: auth).status }
      end
    end
  end

  def test_without_a_token_another_name_for_this_machine_is_refused
    serving do |server|
      assert_refused 403, server.get("/", host: "attacker.example:#{server.port}")
      assert_refused 403, server.put(NAME, segment, host: "localhost.attacker.example")
      %w[localhost 127.0.0.1 [::1]].each { |host| assert_equal 200, server.get("/", host: "#{host}:1").status }
    end
  end

  def test_odd_names_and_paths_are_refused
    serving do |server|
      names = ["../x.ratrace", "..%2fx.ratrace", "%2e%2e/x.ratrace", "a/b.ratrace", ".hidden.ratrace", "x.ratrace.json", "x",
               "x%00.ratrace", "#{"x" * 250}.ratrace", "x.ratrace%0a", "-x.ratrace", "\xFF.ratrace", ""]
      names.each do |name|
        answer = server.put(name, segment)
        assert_includes [400, 404], answer.status, name.inspect
        assert_includes [400, 404], server.get("/segments/#{name}").status, name.inspect
      end
      %w[/recordings/../../etc/passwd /recordings/x.ratrace /etc/passwd /../../etc/passwd //].each do |path|
        assert_includes [400, 404], server.get(path).status, path
      end
      assert_equal %w[.lock .spool], Dir.children(server.dir).sort
      assert_equal ["received"], Dir.children(File.dirname(server.dir))
    end
  end

  def test_a_link_in_the_way_is_not_followed
    serving do |server|
      target = File.join(File.dirname(server.dir), "target")
      File.symlink(target, File.join(server.dir, NAME))

      assert_refused 409, server.put(NAME, segment)
      refute_path_exists target
      assert_refused 404, server.get("/segments/#{NAME}")
    end
  end

  def test_wrong_methods_types_and_keys_are_refused
    serving do |server|
      assert_refused 405, server.request("DELETE", "/segments/#{NAME}")
      assert_equal "POST", server.request("PUT", "/finalize").headers["allow"]
      assert_refused 405, server.request("POST", "/", body: "")
      assert_refused 415, server.request("PUT", "/segments/#{NAME}", body: segment, type: "text/plain")
      assert_refused 415, server.request("POST", "/finalize", body: "{}", type: "text/plain")
      assert_refused 400, server.put(NAME, segment, key: "k" * 256)
      assert_equal 200, server.request("HEAD", "/").status
      assert_empty server.names
    end
  end

  def test_finalize_keeps_what_is_told_of_a_segment_once
    serving do |server|
      server.put(NAME, segment, key: "one")
      tell = ->(body, **more) { server.request("POST", "/finalize", body: body, type: "application/json", **more) }
      object = JSON.generate("object" => "prefix/#{NAME}", "release" => "r1")

      assert_equal ["stored", "stored before"], Array.new(2) { tell.call(object).json["status"] }
      server.restart
      assert_equal "stored before", tell.call(object).json["status"]
      assert_refused 409, tell.call(JSON.generate("release" => "r2"), key: "one")
      assert_match(/\Aignored/, tell.call('{"object":"elsewhere.ratrace"}').json["status"])
      assert_refused 400, tell.call("[]")
      assert_refused 400, tell.call("{")
      assert_refused 400, tell.call("[" * 1000)
      assert_refused 413, tell.call("x" * 70_000)
      assert_equal "r1", server.get("/recordings.json").json["recordings"].first["metadata"]["release"]
    end
  end

  # ------------------------------------------------------------ pages

  def test_pages_show_what_report_shows
    serving do |server|
      server.put(NAME, segment)
      index = server.get("/").body.force_encoding("UTF-8")
      page = server.get("/recordings/#{NAME}?sort=total").body.force_encoding("UTF-8")
      told = server.get("/recordings/#{NAME}.json").json
      profile = Ratrace::Recording.new(server.dir).profile

      assert_includes index, "<a href=\"/recordings/#{NAME}\">program</a>"
      assert_includes page, "Shop#sell"
      assert_includes page, "Nothing was dropped or lost."
      assert_equal profile[:rows].map { |row| row.values_at(:calls, :total_ns, :self_ns) },
                   told["methods"].map { |row| row.values_at("calls", "total_ns", "self_ns") }
      assert_equal told["sessions"].first["lanes"].sum { |lane| lane["decoded"] }, told["recording"]["events"]
    end
  end

  def test_hostile_names_stay_text
    serving do |server|
      server.put(NAME, self.class.segment(EVIL))
      answer = server.get("/recordings/#{NAME}")
      body = answer.body.force_encoding("UTF-8")

      assert_includes body, "Evil#&lt;script&gt;alert(1)&lt;/script&gt;"
      assert_includes body, "Evil#&quot;&#39;&amp;\\e[31m"
      assert_includes body, "&lt;img src=x onerror=alert(1)&gt;"
      refute_match(/<script|<img|style=|<[^>]*\son\w+=|https?:/, body)
      assert_match(/\Adefault-src 'none'; style-src 'self'/, answer.headers["content-security-policy"])
      query = server.get("/?service=%3Cscript%3E%22%27&host=%00&page=-9&x").body
      refute_match(/<script|"'/, query)
    end
  end

  def test_tags_are_shown_and_hostile_ones_stay_text
    serving do |server|
      tagged = HostileSegment.with_tags({ "zone" => "a", "<b>\xFF" => "\e[31m<script>" }, segment)
      assert_equal 201, server.put(NAME, tagged).status
      tags = { "zone" => "a", "<b>\\xFF" => "\\e[31m<script>" }
      body = server.get("/recordings/#{NAME}").body.force_encoding("UTF-8")
      told = server.get("/recordings/#{NAME}.json").json

      assert_includes body, "zone=a, &lt;b&gt;\\xFF=\\e[31m&lt;script&gt;"
      assert_equal [tags, tags], [told["recording"]["tags"], told["sessions"].first["tags"]]
      assert_equal tags, server.get("/recordings.json").json["recordings"].first["tags"]
      server.restart
      assert_equal tags, server.get("/recordings.json").json["recordings"].first["tags"]
    end
  end

  def test_the_app_keeps_to_rack
    require "rack"
    Dir.mktmpdir do |dir|
      File.chmod(0o700, dir)
      store = Ratrace::Receiver::Store.new(dir, log: log = StringIO.new)
      verifier = Ratrace::Receiver::Verifier.new
      app = Ratrace::Receiver.new(store: store, access: Ratrace::Receiver::Access.new(nil), log: log,
                                  report: Ratrace::Receiver::Report.new(store, verifier))
      rack = Rack::MockRequest.new(Rack::Lint.new(app))
      local = { "HTTP_HOST" => "localhost" }
      binary = { **local, "CONTENT_TYPE" => "application/octet-stream", input: segment }
      paths = ["/", "/recordings/#{NAME}", "/recordings/#{NAME}.json", "/segments/#{NAME}", "/style.css"]
      statuses = [rack.put("/segments/#{NAME}", binary), *paths.map { |path| rack.get(path, local) },
                  rack.head("/", local), rack.get("/", "HTTP_HOST" => "other")].map(&:status)

      assert_equal [201, 200, 200, 200, 200, 200, 200, 403], statuses
    end
  end

  # ------------------------------------------------------------ the command

  def test_it_ends_well_when_told_to
    serving do |server|
      assert_equal [0, nil], server.stop(:TERM).then { |status| [status.exitstatus, status.termsig] }
    end
  end

  def test_one_server_a_directory
    serving do |server|
      _, err, status = ratrace("serve", "--dir", server.dir, "--port", "0")

      assert_equal ["ratrace: serve: #{server.dir}: another `ratrace serve` has it\n", 1], [err, status]
    end
  end

  def test_mistakes_are_one_line
    Dir.mktmpdir do |dir|
      short = File.join(dir, "short").tap { |path| File.write(path, "secret") }
      File.chmod(0o755, dir)
      { [] => [2, /no directory given/], ["--dir", dir, "--bind", "0.0.0.0"] => [2, /give a token/],
        ["--dir", dir, "--port", "70000"] => [2, /--port 70000: use 0 to 65535/], ["--dir", dir] => [1, /its mode must be 0700/],
        ["--dir", dir, "--token-file", "#{dir}/none"] => [2, /is no file/],
        ["--dir", dir, "--token-file", short] => [2, /16 to 1024/],
        ["--dir", dir, "--max-segment", "0"] => [2, /--max-segment 0: use 1/] }.each do |arguments, (expected, pattern)|
        out, err, status = ratrace("serve", *arguments)
        assert_equal ["", expected], [out, status], err
        assert_match(/\Aratrace: serve: [^\n]*#{pattern}[^\n]*\n\z/, err)
        refute_includes err, "secret"
      end
    end
  end

  def test_a_missing_puma_is_one_line
    Dir.mktmpdir do |dir|
      err, status = Open3.capture2e(RbConfig.ruby, "--disable-gems", EXE, "serve", "--dir", File.join(dir, "x"))

      assert_equal ["ratrace: serve: there is no gem puma, which this command runs on; get it with `gem install puma`\n", 1],
                   [err, status.exitstatus]
    end
  end

  private

  def within(&block)
    Timeout.timeout(60, &block)
  end

  # Chunks until the server has had enough: the answer, and how many bytes it took to get it.
  def send_for_ever(server, head)
    socket = server.connect
    socket.write("PUT /segments/#{NAME} HTTP/1.1\r\n#{head}Transfer-Encoding: chunked\r\n\r\n")
    piece = "10000\r\n#{"x" * 65_536}\r\n"
    sent = 0
    begin
      until socket.wait_readable(0) || sent > 100 * 1024**2
        sent += socket.write_nonblock(piece, exception: false).then { |n| n == :wait_writable ? sleep(0.01) * 0 : n }
      end
    rescue Errno::EPIPE, Errno::ECONNRESET
      nil
    end
    [server.answer(socket), sent]
  ensure
    socket&.close
  end

  def used(server)
    server.get("/recordings.json").json["used"]
  end

  # Bytes in files of the server that have no name any more: bodies being read.
  def reading(server)
    Dir["/proc/#{server.pid}/fd/*"].sum { |fd| File.readlink(fd).include?(".spool/") ? File.size(fd) : 0 }
  rescue Errno::ENOENT
    0
  end

  def peak_kib(server)
    File.read("/proc/#{server.pid}/status")[/VmHWM:\s+(\d+)/, 1].to_i
  end
end
