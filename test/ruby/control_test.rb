# frozen_string_literal: true

require "json"
require "pathname"
require "socket"
require "test_helper"
require "support/processes"
require "support/recordings"

# `ratrace ctl` and the socket it speaks to: what it does, and what others cannot do through it.
class ControlTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  # Works until its input ends.
  SERVICE = <<~RUBY
    def work = 1
    $stdout.sync = true
    done = false
    Thread.new { $stdin.read; done = true }
    puts Process.pid
    (work; sleep 0.005) until done
    puts "done"
  RUBY

  def trace_dir
    @trace_dir ||= File.join(out_dir, "trace")
  end

  def socket_of(pid, dir = trace_dir)
    File.join(dir, "ratrace-#{pid}.sock")
  end

  # With all its threads: while one of them is still ending, the process's files are open, though it counts as a zombie.
  def ended?(pid)
    Dir.children("/proc/#{pid}/task") == [pid.to_s] && File.read("/proc/#{pid}/stat").split[2] == "Z"
  rescue Errno::ENOENT, Errno::ESRCH
    true
  end

  # A service that listens; the block gets its pid. What it wrote, when it has ended well.
  def with_service(code = SERVICE, env: {}, listening: true)
    env = { "RUBYOPT" => "-w -I#{LIB} -rratrace/auto", "RATRACE_OUT_DIR" => trace_dir, "RATRACE_PERIOD" => "0.05", **env }
    outcome = run_process(RbConfig.ruby, "-e", code, env: env) do |_, stdin, out|
      pid = out.gets.to_i
      wait_for("the socket") { File.socket?(socket_of(pid)) } if listening
      yield pid
      stdin.close
      ""
    end
    refute outcome.timed_out, outcome.err
    assert_equal "", outcome.err
    assert outcome.status.success?, outcome.status.to_s
    outcome.out
  end

  def ctl(*arguments)
    outcome = run_process(RbConfig.ruby, "-w", EXE, "ctl", *arguments.map(&:to_s), chdir: out_dir)
    [outcome.out, outcome.err, outcome.status.exitstatus]
  end

  def ctl!(*arguments)
    out, err, status = ctl(*arguments)
    assert_equal ["", 0], [err, status]
    out
  end

  # ---------------------------------------------------------------- what it does

  def test_a_running_process_is_stopped_and_started_again
    with_service do |pid|
      assert_match(/\Astopped #{trace_dir}.*\.ratrace\n\z/, ctl!(pid, "stop"))
      refute JSON.parse(ctl!(pid, "status", "--json"))["recording"]
      assert_equal ["", "ratrace: ctl: nothing is being recorded\n", 1], ctl(pid, "stop")
      assert_equal ["", "ratrace: ctl: nothing is being recorded; start it first\n", 1], ctl(pid, "flush")
      assert_equal "recording\n", ctl!(pid, "start")
      assert_equal ["", "ratrace: ctl: it is being recorded already\n", 1], ctl(pid, "start")
      assert_equal "flushed\n", ctl!(pid, "flush")
      assert_operator JSON.parse(ctl!(pid, "status", "--json"))["written_events"], :>, 0
    end
    assert_equal 2, account_of(trace_dir)[:sessions].size
    assert_sound(trace_dir)
    assert_equal ["work"], calls_in(trace_dir).keys - %w[read]
  end

  def test_a_process_that_came_up_off_is_started_and_stopped
    with_service(env: { "RATRACE_ENABLED" => "0" }) do |pid|
      assert_equal 0o700, File.stat(trace_dir).mode & 0o777
      assert_equal ["", "ratrace: ctl: nothing is being recorded\n", 1], ctl(pid, "stop")
      off = JSON.parse(ctl!(pid, "status", "--json"))
      assert_equal [false, "enabled is off, by RATRACE_ENABLED", nil], off.values_at("recording", "why", "exporter")
      assert_equal ["ratrace-#{pid}.sock"], Dir.children(trace_dir)
      assert_equal "recording\n", ctl!(pid, "start")
      assert_equal "flushed\n", ctl!(pid, "flush")
      on = JSON.parse(ctl!(pid, "status", "--json"))
      assert_equal [true, false, true], [on["recording"], on.key?("why"), on["exporter"]["running"]]
      assert_match(/\Astopped /, ctl!(pid, "stop"))
      assert_equal "it was stopped", JSON.parse(ctl!(pid, "status", "--json"))["why"]
      assert_equal "recording\n", ctl!(pid, "start")
      ctl!(pid, "flush")
    end
    assert_equal 2, account_of(trace_dir)[:sessions].size
    assert_sound(trace_dir)
    assert_operator calls_in(trace_dir)["work"], :>, 0
  end

  def test_a_start_is_of_the_same_directories_after_the_process_left_them
    relative = Pathname.new(trace_dir).relative_path_from(ROOT).to_s
    with_service("Dir.chdir('/')\n#{SERVICE}", env: { "RATRACE_OUT_DIR" => relative }) do |pid|
      ctl!(pid, "stop")
      ctl!(pid, "start")
      assert_match(/\Astopped #{trace_dir}/, ctl!(pid, "stop"))
    end
    traces = account_of(trace_dir)[:sessions].map { |session| session[:trace] }
    assert_equal [traces.first] * 2, traces
  end

  def test_disabled_leaves_nothing_running
    code = "require 'ratrace/agent'; Ratrace::Agent.start\n#{SERVICE.sub('puts "done"', "p Thread.list.size - 1; puts 'done'")}"
    [{ "RATRACE_DISABLED" => "1" }, { "RATRACE_DISABLED" => "1", "RATRACE_ENABLED" => "1" },
     { "RATRACE_ENABLED" => "0", "RATRACE_CONTROL" => "0" }].each do |env|
      out = with_service(code.sub("puts Process.pid", "sleep 1.2; puts Process.pid"), env: env, listening: false) { nil }
      assert_equal "0\ndone\n", out
      refute_path_exists trace_dir
    end
  end

  def test_a_process_disabled_meanwhile_is_not_started
    with_service("ENV['RATRACE_DISABLED'] = '1'\n#{SERVICE}", env: { "RATRACE_ENABLED" => "0" }) do |pid|
      assert_equal ["", "ratrace: ctl: recording is disabled by RATRACE_DISABLED\n", 1], ctl(pid, "start")
    end
  end

  def test_status_is_for_people_and_for_programs
    with_service do |pid|
      assert_match(/^recording +true$/, ctl!(pid, "status"))
      assert_match(/^drops\.slot_full +0$/, ctl!(pid, "status", "--dir", trace_dir))
      status = JSON.parse(ctl!(pid, "--json", "status"))
      assert_equal [true, 0, nil, "words"], [status["recording"], status["drops"]["slot_full"], status["failure"], status["frame_path"]]
    end
  end

  def test_mistakes_on_the_command_line_end_with_2
    [[], ["5"], ["x", "stop"], ["0", "stop"], ["-5", "stop"], ["5", "halt"], ["5", "stop", "6"]].each do |arguments|
      out, err, status = ctl(*arguments)
      assert_equal ["", 2, 1], [out, status, err.lines.size], arguments.inspect
    end
  end

  def test_a_process_that_does_not_listen_is_one_line
    out, err, status = ctl(Process.pid, "status")
    assert_equal ["", 1, 1], [out, status, err.lines.size]
    assert_match(/does not listen in .*--dir/, err)
  end

  def test_a_process_that_is_gone_is_told_as_gone
    pid = spawn("true").tap { |child| Process.wait(child) }

    assert_equal ["", "ratrace: ctl: there is no process #{pid}\n", 1], ctl(pid, "status")
  end

  # ---------------------------------------------------------------- the socket

  def test_the_socket_is_the_owners_and_goes_with_the_process
    path = nil
    with_service do |pid|
      path = socket_of(pid)
      assert_equal [0o600, Process.euid], [File.stat(path).mode & 0o777, File.stat(path).uid]
      assert_equal 0o700, File.stat(trace_dir).mode & 0o777
    end
    refute_path_exists path
  end

  def test_a_dead_processs_socket_is_removed_by_the_next
    pid = nil
    killed = run_process(RbConfig.ruby, "-e", SERVICE, env: { "RUBYOPT" => "-I#{LIB} -rratrace/auto", "RATRACE_OUT_DIR" => trace_dir }) do |_, _, out|
      pid = out.gets.to_i
      wait_for("the socket") { File.socket?(socket_of(pid)) }
      Process.kill(:KILL, pid)
      ""
    end
    assert_equal Signal.list["KILL"], killed.status.termsig
    assert_path_exists socket_of(pid)
    _, err, = ctl(pid, "status", "--dir", trace_dir)
    assert_match(/does not listen/, err)
    with_service { refute_path_exists socket_of(pid) }
  end

  def test_a_path_too_long_for_an_address_works_too
    @trace_dir = File.join(out_dir, "x" * 100, "y" * 100)
    with_service { |pid| assert_match(/true/, ctl!(pid, "status", "--dir", trace_dir)) }
  end

  def test_a_directory_removed_and_made_again_gets_a_socket_again
    with_service do |pid|
      FileUtils.rm_rf(trace_dir)
      wait_for("the socket") { File.socket?(socket_of(pid)) }
      assert_match(/true/, ctl!(pid, "status"))
    end
  end

  # Nothing that lies where the socket should be is touched, whatever it is.
  def test_what_lies_in_the_sockets_place_stays
    FileUtils.mkdir_p(trace_dir, mode: 0o700)
    treasure = File.join(out_dir, "treasure")
    File.write(treasure, "gold")
    code = <<~RUBY
      path = File.join(ENV["RATRACE_OUT_DIR"], "ratrace-\#{Process.pid}.sock")
      ENV["KIND"] == "link" ? File.symlink(#{treasure.inspect}, path) : File.link(#{treasure.inspect}, path)
      #{SERVICE.sub("puts \"done\"", "sleep 0.05 until Ratrace.stats[:off][:control]; puts Ratrace.stats[:off][:control]; puts \"done\"")}
    RUBY
    %w[link hard].each do |kind|
      out = with_service(code, env: { "KIND" => kind }, listening: false) { nil }
      assert_match(/cannot listen at .*something else lies there/, out)
      assert_equal "gold", File.read(treasure)
    end
  end

  # ---------------------------------------------------------------- children

  FORKING = <<~RUBY
    def work = 1
    $stdout.sync = true
    puts Process.pid
    child = fork { sleep 60 }
    puts child
    $stdin.read
    Process.kill(:KILL, child)
    Process.wait(child) rescue nil
  RUBY

  def test_a_child_has_a_socket_of_its_own_and_not_its_parents
    child = nil
    code = FORKING.sub("sleep 60", "work while true")
    env = { "RUBYOPT" => "-w -I#{LIB} -rratrace/auto", "RATRACE_OUT_DIR" => trace_dir }
    outcome = run_process(RbConfig.ruby, "-e", code, env: env) do |_, _, out|
      pid = out.gets.to_i
      child = out.gets.to_i
      [pid, child].each { |one| wait_for("the socket of #{one}") { File.socket?(socket_of(one)) } }
      assert_match(/stopped/, ctl!(child, "stop"))
      assert JSON.parse(ctl!(pid, "status", "--json"))["recording"]
      Process.kill(:KILL, pid) # nobody holds its socket open
      wait_for("the parent's end") { ended?(pid) }
      assert_match(/does not listen/, ctl(pid, "status", "--dir", trace_dir)[1])
      assert_equal "recording\n", ctl!(child, "start")
      ""
    ensure
      Process.kill(:KILL, child)
    end
    assert_equal "", outcome.err
  end

  def test_children_that_live_a_moment_have_no_socket
    with_service("20.times { Process.wait(fork { sleep 0.01 }) }; 20.times { Process.wait(fork { exit!(0) }) }\n#{SERVICE}") do |pid|
      assert_equal [socket_of(pid)], Dir[File.join(trace_dir, "*.sock*")]
    end
  end

  def test_a_daemon_listens
    pid_file = File.join(out_dir, "pid")
    run_auto_code(<<~RUBY)
      def work = 1
      Process.daemon(true, false)
      File.write(#{pid_file.inspect}, Process.pid)
      (work; sleep 0.01) while true
    RUBY
    wait_for("the daemon") { File.size?(pid_file) }
    pid = File.read(pid_file).to_i
    wait_for("the socket") { File.socket?(socket_of(pid)) }
    assert_match(/stopped/, ctl!(pid, "stop"))
  ensure
    Process.kill(:KILL, pid) if pid
  end

  # ---------------------------------------------------------------- the host

  def test_no_thread_where_no_control_is_wanted
    out = with_service(SERVICE.sub('puts "done"', "p Thread.list.size - 1"), env: { "RATRACE_CONTROL" => "0" }, listening: false) { sleep 0.1 }
    assert_equal "0\n", out
  end

  def test_a_host_that_joins_every_thread_ends
    run_auto_code("Thread.new { sleep 1.5 }; (Thread.list - [Thread.current]).each(&:join); puts 1")
      .then { |outcome| assert_equal ["1\n", "", 0], [outcome.out, outcome.err, outcome.status.exitstatus] }
  end

  def test_a_hosts_deadlock_is_reported
    outcome = run_auto_code("Thread.new { Queue.new.pop }; Queue.new.pop")
    assert_match(/No live threads left. Deadlock\?/, outcome.err)
  end

  def test_a_host_that_aborts_on_exceptions_of_threads_ends_well
    outcome = run_auto_code("Thread.abort_on_exception = true; Thread.report_on_exception = true; sleep 1.3; puts 1")
    assert_equal ["1\n", "", 0], [outcome.out, outcome.err, outcome.status.exitstatus]
  end

  def run_auto_code(code)
    env = { "RUBYOPT" => "-w -I#{LIB} -rratrace/auto", "RATRACE_OUT_DIR" => trace_dir }
    run_process(RbConfig.ruby, "-e", code, env: env).tap { |outcome| refute outcome.timed_out, outcome.err }
  end

  # ---------------------------------------------------------------- hostile clients

  HOSTILE = {
    "a silent one" => ->(socket) { socket.wait_readable(5) },
    "one that sends without end" => ->(socket) { loop { socket.write("x" * 65_536) } },
    "one that sends a line without end" => ->(socket) { socket.write("status" * 100) },
    "one that sends garbage" => ->(socket) { socket.write(Random.bytes(60)) },
    "one that sends NUL" => ->(socket) { socket.write("sta\0tus\n") },
    "one that goes at once" => ->(_) {},
    "one that asks and goes" => ->(socket) { socket.write("status\n") },
    "one that sends slowly" => ->(socket) { 20.times { socket.write("s") && sleep(0.2) } },
    "one that asks for nothing known" => ->(socket) { socket.write("shutdown\n") && assert_match(/\Aerror unknown/, socket.read) },
    "one that does not read" => ->(socket) { socket.setsockopt(:SOCKET, :RCVBUF, 1) && socket.write("status\n") && sleep(1.5) }
  }.freeze

  HOSTILE.each do |name, act|
    define_method("test_a_client_does_no_harm_#{name.tr(" ", "_")}") do
      with_service do |pid|
        UNIXSocket.open(socket_of(pid)) do |socket|
          instance_exec(socket, &act)
        rescue Errno::EPIPE, Errno::ECONNRESET
          nil # hung up on
        end
        assert JSON.parse(ctl!(pid, "status", "--json"))["recording"]
      end
    end
  end

  def test_many_clients_at_once_do_no_harm
    with_service do |pid|
      sockets = 100.times.filter_map do
        socket = Socket.new(:UNIX, :STREAM)
        socket.connect_nonblock(Socket.sockaddr_un(socket_of(pid))) == 0 ? socket : nil
      rescue Errno::EAGAIN
        socket.close # as many as may wait wait already
      end
      refute_empty sockets
      sockets.each(&:close)
      assert JSON.parse(ctl!(pid, "status", "--json"))["recording"]
    end
  end

  # Runs the block in a child that is somebody else.
  def as_another_user
    skip "only root can become another user" unless Process.uid.zero?
    Process.wait(fork do
      Process::Sys.setgid(65_534)
      Process::Sys.setuid(65_534)
      exit!(yield)
    end)
    assert_predicate $?, :success?
  end

  # The library says that the directory takes its time, until the program's own thread has run meanwhile.
  def test_a_slow_disk_holds_up_no_other_thread
    library, entered, ran, late = %w[slow.so entered ran late].map { |name| File.join(out_dir, name) }
    File.write("#{library}.c", <<~C)
      #define _GNU_SOURCE
      #include <dirent.h>
      #include <dlfcn.h>
      #include <fcntl.h>
      #include <stdlib.h>
      #include <string.h>
      #include <sys/prctl.h>
      #include <unistd.h>

      DIR *fdopendir(int fd)
      {
          DIR *(*real)(int) = (DIR * (*)(int)) dlsym(RTLD_NEXT, "fdopendir");
          const char *entered = getenv("ENTERED"), *ran = getenv("RAN");
          char thread[16];
          if (prctl(PR_GET_NAME, thread) == 0 && strcmp(thread, "ratrace") == 0 && access(entered, F_OK) != 0) {
              close(open(entered, O_CREAT | O_WRONLY, 0600));
              for (int i = 0; i < 1000 && access(ran, F_OK) != 0; i++)
                  usleep(10000);
              if (access(ran, F_OK) != 0)
                  close(open(getenv("LATE"), O_CREAT | O_WRONLY, 0600));
          }
          return real(fd);
      }
    C
    assert system("cc", "-shared", "-fPIC", "-o", library, "#{library}.c")
    code = SERVICE.sub("puts Process.pid", <<~RUBY)
      sleep 0.01 until File.exist?(ENV["ENTERED"])
      File.write(ENV["RAN"], "")
      puts Process.pid
    RUBY
    preload = [*ENV.fetch("LD_PRELOAD", nil), library].join(":")
    with_service(code, env: { "LD_PRELOAD" => preload, "ENTERED" => entered, "RAN" => ran, "LATE" => late }) { nil }
    assert_path_exists entered
    refute_path_exists late
  end

  def test_another_user_is_not_heard_even_where_the_path_is_open
    with_service do |pid|
      [out_dir, trace_dir].each { |dir| File.chmod(0o755, dir) }
      File.chmod(0o666, socket_of(pid))
      as_another_user do
        UNIXSocket.open(socket_of(pid)) { |socket| socket.write("stop\n") && socket.read == "" }
      rescue Errno::EPIPE, Errno::ECONNRESET
        true
      end
      assert JSON.parse(ctl!(pid, "status", "--json"))["recording"]
    end
  end

  def test_another_users_socket_is_not_believed
    File.chmod(0o777, out_dir)
    reader, writer = IO.pipe
    impostor = fork do
      Process::Sys.setuid(65_534) if Process.uid.zero?
      server = UNIXServer.new(socket_of(4_000_000, out_dir))
      writer.puts "ready"
      server.accept.wait_readable
      sleep
    end
    skip "only root can become another user" unless Process.uid.zero?
    reader.gets
    out, err, status = ctl(4_000_000, "stop", "--dir", out_dir)
    assert_equal ["", 1], [out, status]
    assert_match(/belongs to user 65534/, err)
  ensure
    Process.kill(:KILL, impostor)
    Process.wait(impostor)
  end
end
