# frozen_string_literal: true

require "test_helper"
require_relative "support/shipping"

# The exporter inside a process: Ratrace::Native.exporter_start and its like.
class ExporterTest < Minitest::Test
  parallelize_me!
  include Shipping

  PREAMBLE = <<~RUBY
    require "ratrace"
    N = Ratrace::Native
    def step; end
    def start(**options) = N.exporter_start({ out_dir: ARGV[0], url: ARGV[1], time_scale: 100 }.merge(options))
    def stats = N.exporter_stats
    def await
      limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 60
      until yield
        abort "in vain: \#{stats}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit
        sleep 0.005
      end
    end
    def record = Ratrace.record(out_dir: ARGV[0]) { 100.times { step } }
  RUBY

  def test_what_is_recorded_is_delivered_while_it_runs_and_at_the_end
    dir = dir()
    server = server()
    out = run_with(dir, server, <<~RUBY)
      start(token: "sesame", headers: { "X-Team" => "blue" })
      2.times { record }
      await { stats[:delivered] == 2 }
      record
      p N.exporter_stop(30), stats.slice(:running, :delivered, :waiting, :last_error)
    RUBY

    assert_equal "true\n#{{ running: false, delivered: 3, waiting: 0, last_error: nil }}\n", out
    assert_equal 3, server.keys.size
    assert_empty waiting(dir)
    assert_equal [["Bearer sesame", "blue"]], server.requests.map { |request| request.headers.values_at("authorization", "x-team") }.uniq
  end

  def test_libcurl_is_loaded_when_it_is_needed
    out = run_with(dir, server, <<~'RUBY')
      maps = -> { File.read("/proc/self/maps")[/libcurl/] }
      record
      N.exporter_start(out_dir: ARGV[0])
      p maps.call
      N.exporter_stop
      start
      p maps.call
      p N.exporter_stop(30)
    RUBY

    assert_equal "nil\n\"libcurl\"\ntrue\n", out
  end

  def test_without_a_target_it_holds_the_bounds
    dir = spool
    sizes = waiting(dir).transform_values(&:bytesize)
    out = run_with(dir, nil, <<~RUBY, sizes.values.max.to_s, err: /ratrace: .* exceeds its bounds/)
      N.exporter_start(out_dir: ARGV[0], spool_bytes: ARGV[2].to_i, time_scale: 100)
      await { stats[:dropped][:spool_bytes] == 2 }
      N.exporter_stop
      p stats[:dropped_bytes]
    RUBY

    assert_equal sizes.values.sum - waiting(dir).values.first.bytesize, out.to_i
  end

  def test_a_directory_that_is_not_there_yet_is_no_failure
    dir = File.join(dir(), "later")
    server = server()
    run_with(dir, server, <<~RUBY)
      start
      await { stats[:running] }
      record
      await { stats[:delivered] == 1 }
      p N.exporter_stop
    RUBY

    assert_equal 1, server.keys.size
  end

  def test_wrong_options_are_named
    out = run_with(dir, server, <<~'RUBY')
      [{}, { url: "http://h/" }, { out_dir: 1 }, { out_dir: "a\0b" }, { out_dir: "a", url: "h" }, { out_dir: "a", nonsense: 1 },
       { out_dir: "a", url: "http://h/", method: "GET" }, { out_dir: "a", spool_bytes: -1 }, { out_dir: "a", spool_age: "x" },
       { out_dir: "a", headers: 1 }, { out_dir: "a", url: "http://h/", headers: ["x"] },
       { out_dir: "a", url: "http://h/", headers: { "A" => "b\r\nC: d" } },
       { out_dir: "a", url: "http://h/", s3: { bucket: "b" } }, { out_dir: "a", s3: { bucket: "b", nonsense: 1 } },
       { out_dir: "a", url: "https://h/", token: "a b" },
       { out_dir: "a", s3: { bucket: "b", access_key_id: "a", secret_access_key: "b", endpoint: "https://h/?key=s3cret" } }, { out_dir: "a", deadline: Float::NAN }].each do |options|
        N.exporter_start(options)
        puts "#{options} is allowed"
      rescue Ratrace::ConfigurationError => e
        puts e.message
      end
      p N.exporter_stop
    RUBY

    refute_match(/is allowed/, out.gsub("is not allowed", ""))
    assert_equal 18, out.lines.size
    refute_includes out, "s3cret"
    assert_equal "nil\n", out.lines.last
  end

  def test_there_is_one_and_it_can_be_started_again
    out = run_with(dir, server, <<~RUBY)
      start
      begin
        start
      rescue Ratrace::Error => e
        puts e.message
      end
      N.exporter_stop
      p N.exporter_stop, N.exporter_stop(0)
      start
      record
      await { stats[:delivered] == 1 }
    RUBY

    assert_equal "cannot start the exporter: it is running\nnil\nnil\n", out
  end

  # ---------------------------------------------------------------- the end of the process

  def test_a_server_that_never_answers_holds_the_end_up_for_the_deadline_only
    dir = dir()
    server = server { :black_hole }
    out = run_with(dir, server, <<~RUBY, err: /ratrace: 1 segments \(\d+ bytes\) are not delivered and stay in/)
      start(time_scale: 1, deadline: 0.3)
      record
      await { stats[:attempts] == 1 }
      begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      p N.exporter_stop
      p Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun >= 0.3
    RUBY

    assert_equal "false\ntrue\n", out
    assert_equal 1, waiting(dir).size
  end

  # As some daemons do. What gets the numbers afterwards is the host's: it is not written to, read or closed.
  def test_a_host_that_closes_all_descriptors_keeps_those_it_opens_next
    arrived = File.join(dir, "arrived")
    hole = server do
      File.write(arrived, "")
      :black_hole
    end
    { "stats[:retried] == 1" => "http://127.0.0.1:1/", "File.exist?(ARGV[3])" => hole.url }.each do |moment, url|
      out = run_with(spool(1), nil, <<~'RUBY', url, arrived, moment, err: /are not delivered/)
        require "fiddle"
        close = Fiddle::Function.new(Fiddle::Handle::DEFAULT["close"], [Fiddle::TYPE_INT], Fiddle::TYPE_INT)
        fds = -> { Dir.children("/proc/self/fd").map(&:to_i).select { |fd| File.exist?("/proc/self/fd/#{fd}") || File.symlink?("/proc/self/fd/#{fd}") } }
        before = fds.call
        start(url: ARGV[2], time_scale: 1)
        await { eval(ARGV[4]) }
        ours = fds.call - before
        ours.each { |fd| close.call(fd) }
        files = ours.map { |fd| File.open("#{ARGV[3]}-#{fd}", "w+").tap { |file| file.sync = true } }
        spent = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
        sleep 0.5
        spent = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - spent
        files.each { |file| file.write("1") }
        Process.wait(fork { files.each { |file| file.write("2") } && exit! })
        N.exporter_stop(0.1)
        files.each { |file| file.write("3") }
        p ours.size > 3, files.map(&:fileno).sort == ours.sort, files.map { |file| File.read(file.path) }.uniq, spent < 0.1
      RUBY

      assert_equal "true\ntrue\n[\"123\"]\ntrue\n", out, moment
    end
  end

  # Whatever it is doing: nobody has stopped it.
  def test_the_process_may_end_at_any_moment
    hole = server { :black_hole }
    tls = server(context: Certificates.new.context) { :black_hole }
    [hole, tls].product(["exit 3", "exit! 3", "Thread.new { exit 3 }.join", "Process.exec('sh', '-c', 'exit 3')"]).each do |server, ending|
      dir = spool(1)
      outcome = run_code("#{PREAMBLE}start(time_scale: 1)\nawait { stats[:attempts] == 1 }\n#{ending}", dir, server.url)

      assert_equal 3, outcome.status.exitstatus, "#{ending}: #{outcome.status} #{outcome.err}"
      assert_equal 1, waiting(dir).size
    end
  end

  def test_a_killed_exporter_leaves_no_claim
    dir = spool(1)
    hole = server { :black_hole }
    run_code("#{PREAMBLE}start(time_scale: 1)\nawait { stats[:attempts] == 1 }\nProcess.kill(:KILL, Process.pid)", dir, hole.url)
    server = server()

    assert_predicate ship(dir, "--to", server.url, "--once"), :success?
    assert_equal 1, server.keys.size
  end

  # ---------------------------------------------------------------- fork

  # The child holds nothing of its parent's: not the connection, not the claim, not a descriptor.
  def test_a_child_abandons_an_upload_that_is_under_way
    dir = spool(1)
    hole = server { :black_hole }
    out = run_with(dir, hole, <<~'RUBY', err: /are not delivered/)
      fds = -> { Dir.children("/proc/self/fd").filter_map { |fd| File.readlink("/proc/self/fd/#{fd}") rescue nil } }
      before = fds.call
      start(time_scale: 1)
      await { stats[:attempts] == 1 }
      child = fork do
        puts (fds.call - before).grep_v(/anon_inode:\[eventfd\]|pipe/).inspect
        puts fds.call.grep(/claims/).inspect, stats[:running], N.exporter_stop.inspect
        $stdout.flush
        sleep # with everything it inherited
      end
      trap(:TERM) { exit!(0) }
      sleep 0.2
      puts "parent #{stats[:running]}"
      $stdout.flush
      Process.kill(:KILL, child) if ARGV[2]
      Process.wait(child) if ARGV[2]
      puts "stopped #{N.exporter_stop(0)}"
      $stdout.flush
      Process.kill(:KILL, child) rescue nil
      Process.wait(child) rescue nil
    RUBY

    assert_includes out, "[]\n[]\nfalse\nnil\n"
    assert_includes out, "parent true\nstopped false\n"
  end

  # libcurl opens sockets of its own without CLOEXEC.
  def test_a_program_started_during_an_upload_inherits_none_of_its_descriptors
    arrived = File.join(dir, "arrived")
    hole = server do
      File.write(arrived, "")
      :black_hole
    end
    out = run_with(spool(1), hole, <<~'RUBY', arrived, err: /are not delivered/)
      inherited = -> { IO.popen(%w[ls -l /proc/self/fd], &:read).scan(/socket:.*|.*ratrace.*/) }
      before = inherited.call
      start(time_scale: 1)
      await { File.exist?(ARGV[2]) }
      p inherited.call - before, N.exporter_stop(0)
    RUBY

    assert_equal "[]\nfalse\n", out
  end

  def test_a_living_child_of_a_dead_parent_blocks_nobody
    dir = spool(1)
    hole = server { :black_hole }
    reader, writer = IO.pipe
    pid = Process.spawn({ **NEUTRAL, "RATRACE_LIVE_DIR" => live_dir }, RbConfig.ruby, "-I#{LIB}", "-e", <<~RUBY, dir, hole.url, out: writer)
      #{PREAMBLE}
      start(time_scale: 1)
      await { stats[:attempts] == 1 }
      puts fork { sleep }
      $stdout.flush
      Process.kill(:KILL, Process.pid)
    RUBY
    Process.wait(pid)
    child = reader.gets.to_i
    server = server()

    assert_predicate ship(dir, "--to", server.url, "--once"), :success?
    assert_equal 1, server.keys.size
  ensure
    Process.kill(:KILL, child) if child&.positive?
    [reader, writer].each { |io| io&.close }
  end

  # A daemon's parent is gone, so the child ships for itself, from its first recorded event.
  def test_a_child_that_records_ships_for_itself
    dir = dir()
    server = server()
    run_with(dir, server, <<~RUBY)
      start
      Ratrace.start(out_dir: ARGV[0])
      step
      reader, writer = IO.pipe
      fork do
        reader.close
        100.times { step }
        await { stats[:running] }
        Ratrace.stop
        await { stats[:delivered] >= 1 }
        writer.write "well"
        exit!(0)
      end
      writer.close
      N.exporter_stop(0) # the parent's is gone
      p reader.read
      Process.wait
    RUBY

    assert_operator server.keys.size, :>=, 1
  end

  def test_forks_at_any_moment_neither_hang_nor_deliver_twice
    dir = spool(12)
    before = waiting(dir)
    server = server { :trickle }
    out = run_with(dir, server, <<~RUBY)
      start
      children = 0
      until stats[:delivered] == 12
        pid = fork { exit!(0) }
        Process.wait(pid)
        children += 1
      end
      p children > 0, N.exporter_stop(30)
    RUBY

    assert_equal "true\ntrue\n", out
    assert_delivered before, dir, server
    assert_equal 12, server.requests.size
  end

  private

  def run_with(dir, server, code, *arguments, err: nil)
    outcome = run_code(PREAMBLE + code, dir, server&.url.to_s, *arguments)
    assert_predicate outcome, :success?, "#{outcome.status}\n#{outcome.err}#{outcome.out}"
    err ? assert_match(err, outcome.err) : assert_empty(outcome.err)
    outcome.out
  end
end
