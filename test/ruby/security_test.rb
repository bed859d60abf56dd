# frozen_string_literal: true

require "test_helper"
require "support/processes"
require "support/recordings"

# What others on the machine can see of a recorded service, and what they cannot make it do. The control socket, the
# metrics file and the part files have tests of their own beside what they test.
class SecurityTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  SECRETS = %w[tok3n-aaaa h3ader-bbbb k3y-cccc sess1on-dddd pr0xy-eeee qu3ry-ffff].freeze
  ENVIRONMENT = {
    "RATRACE_EXPORT_TOKEN" => SECRETS[0], "RATRACE_EXPORT_HEADERS" => "X-Key=#{SECRETS[1]}",
    "AWS_SECRET_ACCESS_KEY" => SECRETS[2], "AWS_SESSION_TOKEN" => SECRETS[3],
    "RATRACE_PROXY" => "http://user:#{SECRETS[4]}@127.0.0.1:1", "RATRACE_EXPORT_URL" => "https://127.0.0.1:1/x?key=#{SECRETS[5]}"
  }.freeze
  SERVICE = <<~RUBY
    require "ratrace"
    File.umask(0)
    def work = 1
    $stdout.sync = true
    Ratrace::Agent.start
    work
    Ratrace.flush
    puts Process.pid
    $stdin.read
    p Ratrace.stats, Ratrace.configuration
    puts Ratrace::Metrics.text, Ratrace.configuration.to_s
  RUBY

  def trace_dir
    File.join(out_dir, "deep/trace")
  end

  def with_service(env)
    env = { "RATRACE_OUT_DIR" => trace_dir, "RATRACE_PERIOD" => "0.1", "RATRACE_LIVE_DIR" => File.join(live_dir, "own"), **env }
    run_code(SERVICE, env: env) do |_, stdin, out|
      pid = out.gets.to_i
      wait_for("the socket") { File.socket?(File.join(trace_dir, "ratrace-#{pid}.sock")) }
      yield pid
      stdin.close
      ""
    end
  end

  def test_files_are_the_owners_in_directories_of_the_owner_whatever_the_umask
    modes = nil
    with_service({}) do
      found = [trace_dir, File.dirname(trace_dir), File.join(live_dir, "own"), *Dir[File.join(trace_dir, "**/*"), File.join(live_dir, "own/*")]]
      modes = found.to_h { |path| [path, File.lstat(path).mode & 0o7777] }
    end
    kinds = modes.keys.map { |path| File.extname(path) }
    assert_empty %w[.part .sock .live] - kinds
    modes.each { |path, mode| assert_equal kinds_mode(path), mode, path }
  end

  def kinds_mode(path)
    File.extname(path).empty? && !path.end_with?(".claims") ? 0o700 : 0o600
  end

  def test_no_secret_is_in_what_it_writes_or_says
    texts = []
    outcome = with_service(ENVIRONMENT) do |pid|
      texts << File.binread("/proc/#{pid}/cmdline")
      %w[status flush].each { |request| texts << run_process(RbConfig.ruby, EXE, "ctl", pid.to_s, request, "--dir", trace_dir).out }
      [trace_dir, live_dir].each do |dir|
        Dir[File.join(dir, "**/*")].each { |path| texts << File.binread(path) if File.file?(path) }
      end
    end
    texts << outcome.out << outcome.err
    assert_match(/exporter\.running|recording/, texts.join)
    SECRETS.each { |secret| texts.each { |text| refute_includes text.b, secret } }
  end

  def test_no_secret_is_in_what_it_complains_of
    ENVIRONMENT.each do |name, value|
      wrong = name.start_with?("AWS") || name == "RATRACE_EXPORT_TOKEN" ? "#{value}\n" : value.sub(/\Ahttps?/, "gopher").sub("X-Key", "X Key")
      outcome = run_code("require 'ratrace'\nRatrace::Agent.start", env: { "RATRACE_OUT_DIR" => trace_dir, name => wrong })
      assert_match(/\Aratrace: not recording: /, outcome.err, name)
      SECRETS.each { |secret| refute_includes outcome.err, secret }
    end
  end

  # ---------------------------------------------------------------- in a directory that all may write to

  def shared
    @shared ||= File.join(out_dir, "shared").tap do |dir|
      Dir.mkdir(dir)
      File.chmod(0o777, dir) # and not sticky: the kernel must not be what protects us
    end
  end

  def start_in(env)
    run_code("require 'ratrace'\ndef work = 1\nRatrace::Agent.start\nwork\np Ratrace.stats[:off]", env: { "RATRACE_CONTROL" => "0", **env })
  end

  def test_an_output_directory_that_is_another_users_link_is_refused
    skip "only root can make another user's link" unless Process.uid.zero?
    Dir.mkdir(victim = File.join(out_dir, "victim"))
    File.symlink(victim, link = File.join(shared, "trace"))
    File.lchown(65_534, 65_534, link)
    outcome = start_in({ "RATRACE_OUT_DIR" => link })

    assert_match(/\Aratrace: not recording: the output directory .* is a link of user 65534's; give a directory of your own\n\z/, outcome.err)
    assert_empty Dir.children(victim)
    File.lchown(0, 0, link)
    assert_empty start_in({ "RATRACE_OUT_DIR" => link }).err
    refute_empty Dir.children(victim)
  end

  def test_a_live_directory_that_is_a_link_or_another_users_is_not_used
    Dir.mkdir(victim = File.join(live_dir, "victim"), 0o700)
    File.symlink(victim, link = File.join(shared, "live"))
    assert_match(/live_file/, start_in({ "RATRACE_OUT_DIR" => trace_dir, "RATRACE_LIVE_DIR" => link }).out)
    if Process.uid.zero?
      File.chown(65_534, 65_534, victim)
      assert_match(/belongs to user 65534/, start_in({ "RATRACE_OUT_DIR" => trace_dir, "RATRACE_LIVE_DIR" => victim }).out)
    end
    assert_empty Dir.children(victim)
  end

  # Whoever may write into the directory puts links there under the names of crashed processes' files.
  def test_links_to_other_files_are_never_cut_by_a_recovery
    treasure = File.join(out_dir, "treasure")
    File.write(treasure, "gold")
    Dir.mkdir(dir = File.join(shared, "trace"))
    File.link(treasure, File.join(dir, "shop-host-20260101T000000Z-1-00000001-000001.ratrace.part"))
    File.symlink(treasure, File.join(dir, "shop-host-20260101T000000Z-2-00000002-000001.ratrace.part"))
    run_process(RbConfig.ruby, EXE, "recover", dir)
    start_in({ "RATRACE_OUT_DIR" => dir, "RATRACE_SPOOL_SIZE" => "1M", "RATRACE_SEGMENT_SIZE" => "64K" })

    assert_equal "gold", File.read(treasure)
  end
end
