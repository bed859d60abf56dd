# frozen_string_literal: true

require "json"
require "openssl"
require "socket"
require "test_helper"
require "support/processes"
require "support/recordings"

# `ratrace doctor`: what it finds, what it advises, how it ends, and what it never shows.
class DoctorTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  AREAS = %w[ruby extension configuration libraries out_dir live_dir recording frames clock lock endpoint].freeze

  def trace_dir
    @trace_dir ||= File.join(out_dir, "trace").tap { |dir| Dir.mkdir(dir, 0o700) }
  end

  def doctor(*arguments, env: {}, exe: EXE)
    env = { "RATRACE_OUT_DIR" => trace_dir, "RATRACE_SPOOL_SIZE" => "64M", **env }
    run_process(RbConfig.ruby, "-w", exe, "doctor", *arguments, env: env).tap do |outcome|
      refute outcome.timed_out
      assert_empty outcome.err
    end
  end

  # Exit status, and the findings of an area, or all that are not ok.
  def findings(area = nil, **env)
    outcome = doctor("--json", env: env.transform_keys { |name| "RATRACE_#{name.upcase}" })
    report = JSON.parse(outcome.out)
    assert_equal outcome.status.exitstatus.zero?, report["ok"]
    found = report["findings"].select { |finding| area ? finding["area"] == area : finding["level"] != "ok" }
    found.each { |finding| assert_equal finding["level"] == "ok", finding["remedy"].nil?, finding.inspect }
    [outcome.status.exitstatus, found]
  end

  def assert_finding(level, text, remedy, area, **env)
    status, found = findings(area, **env)
    assert_equal level == "failure" ? 1 : 0, status, found.inspect
    match = found.find { |finding| finding["level"] == level && finding["text"].match?(text) }
    assert match, found.inspect
    assert_match remedy, match["remedy"]
  end

  # ---------------------------------------------------------------- the whole

  def test_a_sound_machine_has_nothing_to_say_and_ends_with_0
    assert_equal [0, []], findings
    report = JSON.parse(doctor("--json").out)
    assert_empty AREAS - report["findings"].map { |finding| finding["area"] }
    assert_equal Ratrace::Settings::ALL.keys.map(&:to_s), report["settings"].map { |setting| setting["name"] }
    assert_empty Dir.children(trace_dir)
  end

  def test_the_text_has_every_finding_and_every_setting_with_its_source
    text = doctor(env: { "RATRACE_PERIOD" => "0.5" }).out
    AREAS.each { |area| assert_match(/^ok +#{area} /, text) }
    assert_match(/^  period +0\.5 +RATRACE_PERIOD$/, text)
    assert_match(/^  out_dir +"#{trace_dir}" +RATRACE_OUT_DIR$/, text)
    assert_match(/^  slot_size +8388608 +default$/, text)
  end

  def test_the_trial_does_not_depend_on_what_is_to_be_recorded
    [{ trace: "app/**/*.rb" }, { trace: "all" }, { include: "nothing.rb" }, { exclude: "*" }, { c_calls: "1" }].each do |setting|
      assert_equal [0, []], findings(**setting), setting.inspect
    end
  end

  # ---------------------------------------------------------------- what is wrong

  def test_wrong_settings_are_failures
    status, found = findings("configuration", period: "soon", slot_size: "1")
    assert_equal [1, 2], [status, found.size]
    assert_match(/\Aperiod: "soon" of RATRACE_PERIOD is not allowed/, found.first["text"])
  end

  def test_a_variable_that_is_no_setting_is_a_warning
    assert_finding("warning", /RATRACE_PERIDO is set and is no setting/, /name/, "configuration", perido: "1")
  end

  def test_disabled_is_a_warning
    assert_finding("warning", /disabled by RATRACE_DISABLED/, /enable/, "configuration", disabled: "1")
  end

  def test_a_directory_that_cannot_be_written_is_a_failure
    file = File.join(out_dir, "file")
    File.write(file, "")
    assert_finding("failure", /#{file} cannot be written/, /set out_dir/, "out_dir", out_dir: File.join(file, "x"))
  end

  def test_a_directory_open_to_others_is_a_warning
    File.chmod(0o777, trace_dir)
    assert_finding("warning", /may be written by others \(mode 0777\)/, /chmod go-w/, "out_dir")
  end

  def test_a_directory_anybody_could_make_is_a_warning
    Dir.mkdir(shared = File.join(out_dir, "shared"))
    File.chmod(0o1777, shared)
    assert_finding("warning", /anybody may make it/, /mkdir -m 0700/, "out_dir", out_dir: File.join(shared, "trace"))
  end

  def test_no_tmpfs_is_a_warning
    disk = Dir.mktmpdir("ratrace-doctor-test", "/var/tmp")
    assert_finding("warning", /slots die with the process: .* is not on tmpfs/, /tmpfs/, "live_dir", live_dir: disk)
  ensure
    FileUtils.rm_rf(disk)
  end

  # As /dev/shm is in a container.
  def test_a_small_tmpfs_is_a_warning
    skip "only root can mount" unless Process.uid.zero?
    Dir.mkdir(small = File.join(out_dir, "small"), 0o700)
    skip "no mounting here" unless system("mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", small, err: File::NULL)
    begin
      assert_finding("warning", /room for 0 more processes/, /slot_size below/, "live_dir", live_dir: small)
      assert_finding("warning", /slots die with the process: no room/, /smaller slot_size/, "live_dir", live_dir: small)
      assert_finding("failure", /8 MiB free; a process writes up to 16 MiB at once/, /make room/, "out_dir", out_dir: small)
    ensure
      system("umount", small)
    end
  end

  def test_slower_ways_are_warnings_with_their_reason
    assert_finding("warning", /public calls.*frame_words is off/, /unset frame_words/, "frames", frame_words: "0")
    assert_finding("warning", /CLOCK_MONOTONIC/, /unset clock/, "clock", clock: "monotonic")
    assert_finding("warning", /slower than membarrier/, /unset fence/, "lock", fence: "seq_cst")
  end

  def test_what_a_killed_process_left_is_a_warning_until_it_is_recovered
    run_process(RbConfig.ruby, "-I#{LIB}", "-rratrace", "-e", "Ratrace.start; Ratrace.flush; Process.kill(:KILL, $$)",
                env: { "RATRACE_OUT_DIR" => trace_dir })
    assert_finding("warning", /\Aunfinished segments of dead processes: 1\z/, /ratrace recover #{trace_dir}/, "leftovers")
    assert run_process(RbConfig.ruby, EXE, "recover", trace_dir).success?
    assert_equal [0, []], findings
  end

  def test_what_a_process_left_that_was_killed_before_it_wrote_is_one_more
    run_process(RbConfig.ruby, "-I#{LIB}", "-rratrace", "-e", "Ratrace.start; Process.kill(:KILL, $$)",
                env: { "RATRACE_OUT_DIR" => trace_dir })
    assert_empty Dir.glob("*", base: trace_dir)
    assert_finding("warning", /\Aunfinished segments of dead processes: 1\z/, /ratrace recover #{trace_dir}/, "leftovers")
    assert run_process(RbConfig.ruby, EXE, "recover", trace_dir).success?
    assert_equal [0, []], findings
  end

  def test_a_living_process_left_nothing
    run_code("require 'ratrace'; Ratrace.start; Ratrace.flush; puts; $stdout.flush; $stdin.read", env: { "RATRACE_OUT_DIR" => trace_dir }) do |_, stdin, out|
      out.gets
      _, found = findings("leftovers")
      assert_equal ["none; segments being written: 1"], found.map { |finding| finding["text"] }
      stdin.close
      ""
    end
  end

  def test_an_extension_that_cannot_be_loaded_is_a_failure
    copy = copy_of_the_gem { |library| File.write(library, "no ELF") }
    outcome = doctor(exe: copy)
    assert_equal 1, outcome.status.exitstatus
    assert_match(/^failure +extension .*ratrace\.so/, outcome.out)
    assert_match(/-> .*gem pristine ratrace/, outcome.out)
  end

  # Structures differ between minor versions, and a crash would be the host's.
  def test_an_extension_of_another_minor_version_is_not_loaded
    version = "#{RUBY_VERSION} #{RUBY_PLATFORM}\0".b
    copy = copy_of_the_gem do |library|
      bytes = File.binread(library)
      assert_equal 1, bytes.scan(version).size
      File.binwrite(library, bytes.sub(version, version.sub(/\A3/, "9")))
    end
    outcome = doctor(exe: copy)
    assert_equal 1, outcome.status.exitstatus
    assert_match(/^failure +extension +ratrace was built for Ruby 9\.\d+, and this is #{RUBY_VERSION[/\d+\.\d+/]}; build it here/, outcome.out)
  end

  def copy_of_the_gem
    FileUtils.cp_r([File.join(ROOT, "lib"), File.join(ROOT, "exe")], out_dir)
    library = File.join(out_dir, "lib/ratrace/ratrace.so")
    FileUtils.rm(library)
    FileUtils.cp(File.join(LIB, "ratrace/ratrace.so"), library)
    yield library
    File.join(out_dir, "exe/ratrace")
  end

  # ---------------------------------------------------------------- the endpoint

  # Answers everybody with these bytes; nil: with nothing.
  def with_server(answer, context: nil)
    server = TCPServer.new("127.0.0.1", 0)
    port = server.addr[1]
    listener = context ? OpenSSL::SSL::SSLServer.new(server, context) : server
    thread = Thread.new do
      loop do
        client = listener.accept
        next Thread.new { sleep } unless answer

        nil until client.gets.to_s.chomp.empty?
        client.write(answer)
        client.close
      rescue OpenSSL::SSL::SSLError, SystemCallError
        next
      end
    end
    yield port
  ensure
    thread&.kill
    server&.close
  end

  def test_an_endpoint_that_answers_is_fine_whatever_it_says_to_a_stranger
    ["200 OK", "401 Unauthorized", "404 Not Found", "405 Method Not Allowed"].each do |answer|
      with_server("HTTP/1.1 #{answer}\r\nContent-Length: 0\r\n\r\n") do |port|
        status, found = findings("endpoint", export_url: "http://127.0.0.1:#{port}/in")
        assert_equal [0, "ok"], [status, found.first["level"]], found.inspect
      end
    end
  end

  def test_an_endpoint_in_trouble_is_a_warning
    with_server("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n") do |port|
      assert_finding("warning", /answers 503/, /log/, "endpoint", export_url: "http://127.0.0.1:#{port}/")
    end
  end

  def test_an_endpoint_that_refuses_or_is_unknown_or_silent_is_a_failure
    closed = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
    assert_finding("failure", /refused/, /port/, "endpoint", export_url: "http://127.0.0.1:#{closed}/")
    assert_finding("failure", /name is not known|Failed to open TCP/, /./, "endpoint", export_url: "http://nothing.invalid/")
    with_server(nil) { |port| assert_finding("failure", /no answer within 3 s/, /firewall/, "endpoint", export_url: "http://127.0.0.1:#{port}/") }
    with_server("nonsense\r\n") { |port| assert_finding("failure", /./, /./, "endpoint", export_url: "http://127.0.0.1:#{port}/") }
  end

  def test_a_certificate_of_nobody_is_a_failure_and_its_authority_helps
    key = OpenSSL::PKey::RSA.new(2048)
    certificate = OpenSSL::X509::Certificate.new
    certificate.version = 2
    certificate.serial = 1
    certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse("/CN=localhost")
    certificate.public_key = key.public_key
    certificate.not_before = Time.now - 3600
    certificate.not_after = Time.now + 3600
    extensions = OpenSSL::X509::ExtensionFactory.new(certificate, certificate)
    certificate.add_extension(extensions.create_extension("subjectAltName", "DNS:localhost"))
    certificate.add_extension(extensions.create_extension("basicConstraints", "CA:TRUE", true))
    certificate.sign(key, OpenSSL::Digest.new("SHA256"))
    File.write(authority = File.join(out_dir, "ca.pem"), certificate.to_pem)
    context = OpenSSL::SSL::SSLContext.new
    context.cert = certificate
    context.key = key
    with_server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", context: context) do |port|
      url = "https://localhost:#{port}/"
      assert_finding("failure", /TLS: .*(self.signed|certificate verify failed)/, /ca_file/, "endpoint", export_url: url)
      status, found = findings("endpoint", export_url: url, ca_file: authority)
      assert_equal [0, "ok"], [status, found.first["level"]], found.inspect
    end
  end

  # ---------------------------------------------------------------- secrets

  def test_no_secret_is_shown
    secret = "s3cr3t-Pa55"
    env = { "RATRACE_EXPORT_TOKEN" => secret, "RATRACE_EXPORT_HEADERS" => "X-Key=#{secret}", "AWS_SECRET_ACCESS_KEY" => secret,
            "RATRACE_EXPORT_URL" => "https://127.0.0.1:1/in?key=#{secret}", "RATRACE_PROXY" => "http://user:#{secret}@127.0.0.1:1" }
    [[], ["--json"]].each do |arguments|
      text = doctor(*arguments, env: env).out
      refute_includes text, secret
      assert_match(/export_token\W.*\bset\b/m, text)
    end
    refute_includes doctor(env: env.merge("RATRACE_PERIOD" => "x")).out, secret
    odd = doctor(env: env.merge("RATRACE_PROXY" => "http://user:#{secret}|@127.0.0.1:1")).out
    assert_match(/proxy has characters in it/, odd)
    refute_includes odd, secret
  end
end
