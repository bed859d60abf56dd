# frozen_string_literal: true

require "socket"
require "test_helper"
require "support/processes"
require "support/recordings"

# A real clustered Puma, with and without preloading, started in each of the ways there are: master and workers give a
# stream each, linked, and Puma has nothing to complain of.
class PumaTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  WORKERS = 4
  APP = <<~RUBY
    class App
      def call(env) = [200, { "content-type" => "text/plain" }, [answer(env)]]
      def answer(env) = "\#{Process.pid} \#{env["PATH_INFO"]}"
    end
  RUBY

  # What each way adds to Puma's configuration, config.ru and the environment.
  WAYS = {
    plugin: { puma: "plugin :ratrace" },
    middleware: { ru: "require \"ratrace/rack\"\nuse Ratrace::Rack" },
    rubyopt: { env: { "RUBYOPT" => "-w -rratrace/auto" } },
    worker_hook: { puma: <<~RUBY, master: false }
      require "ratrace/agent"
      send(respond_to?(:before_worker_boot) ? :before_worker_boot : :on_worker_boot) { Ratrace::Agent.start }
    RUBY
  }.freeze

  # From 3.3 on Ruby can wait for ever in closing a pipe that a signal handler writes to. So ends a worker of Puma's: told
  # by its handler, the server closes that pipe. Where this happens, Puma kills the worker after half a minute. A handler
  # that leaves the writing to a thread is safe.
  SAFE_END = <<~RUBY
    require "puma/server"
    Puma::Server.prepend(Module.new { def stop(sync = false) = Thread.new { super } }) if RUBY_VERSION >= "3.3"
  RUBY

  def app_dir
    File.join(out_dir, "app")
  end

  def trace_dir
    File.join(out_dir, "trace")
  end

  def write_app(puma: "", ru: "", preload: true, **)
    FileUtils.mkdir_p(app_dir)
    File.write(File.join(app_dir, "app.rb"), APP)
    File.write(File.join(app_dir, "config.ru"), "require_relative \"app\"\n#{ru}\nrun App.new\n")
    File.write(File.join(app_dir, "puma.rb"), <<~RUBY)
      workers #{WORKERS}
      threads 2, 2
      #{"preload_app!" if preload}
      bind "unix://#{out_dir}/puma.sock"
      #{SAFE_END}
      #{puma}
    RUBY
  end

  def get(path)
    UNIXSocket.open(File.join(out_dir, "puma.sock")) do |socket|
      socket.write("GET #{path} HTTP/1.0\r\n\r\n")
      socket.read.split("\r\n\r\n", 2).last
    end
  end

  # Answers of every worker: { pid => how many }.
  def ask_all_workers
    answers = Hash.new(0)
    within do
      until answers.size == WORKERS
        threads = 8.times.map { |i| Thread.new { get("/#{i}") } }
        threads.each { |thread| answers[thread.value[/\A\d+/].to_i] += 1 }
      end
    end
    answers
  end

  # Starts Puma, waits for its workers, and ends it when the block has. What it printed.
  def with_puma(env: {}, **app)
    write_app(**app)
    env = { "RUBYLIB" => LIB, "RATRACE_OUT_DIR" => trace_dir, "RATRACE_PERIOD" => "0.1", **env }
    outcome = run_process("puma", "-C", "puma.rb", env: env, chdir: app_dir) do |pid, _, out|
      log = +""
      within { log << out.readline until log.scan(/Worker \d+ \(PID: \d+\) booted/).uniq.size == WORKERS }
      yield pid
      Process.kill(:TERM, pid)
      log
    end
    refute outcome.timed_out, outcome.out + outcome.err
    outcome.out + outcome.err
  end

  def sessions
    Ratrace::Recording.new(trace_dir).sessions
  end

  def calls_by_pid
    events = events_in(trace_dir).select { |event| event["type"] == "call" && event["method"] == "answer" }
    events.map { |event| event["process"] }.tally
  end

  WAYS.each do |name, way|
    define_method("test_four_preloaded_workers_give_linked_streams_by_#{name}") do
      answers = nil
      master = nil
      log = with_puma(**way) do |pid|
        master = pid
        answers = ask_all_workers
      end

      refute_match(/WARNING|warning:|ratrace: /, log)
      assert_equal answers, calls_by_pid
      expected = way.fetch(:master, true) ? [master, *answers.keys] : answers.keys
      assert_equal expected.sort, sessions.map { |session| session[:pid] }.sort
      assert_linked(master, answers.keys) if way.fetch(:master, true)
      assert_sound(trace_dir)
      assert_empty Dir[File.join(trace_dir, "*.{sock,part}")]
    end
  end

  def assert_linked(master, workers)
    parent = sessions.find { |session| session[:pid] == master }
    children = sessions.select { |session| workers.include?(session[:pid]) }
    assert_nil parent[:parent]
    assert_equal [[parent[:id], master]] * WORKERS, children.map { |session| session.values_at(:parent, :parent_pid) }
  end

  def test_workers_that_load_the_application_themselves_give_streams_too
    answers = nil
    log = with_puma(**WAYS[:middleware], preload: false) { answers = ask_all_workers }

    refute_match(/WARNING|warning:/, log)
    assert_equal answers, calls_by_pid
  end

  def test_a_killed_workers_calls_are_recovered_by_those_that_live
    killed = nil
    with_puma(**WAYS[:plugin]) do
      killed = ask_all_workers.keys.first
      Process.kill(:KILL, killed)
      within { sleep 0.05 while File.exist?("/proc/#{killed}") }
      ask_all_workers # its successor answers, too
    end
    out = run_process(RbConfig.ruby, EXE, "recover", trace_dir)
    assert out.success?, out.err
    assert_includes calls_by_pid.keys, killed
    assert_equal WORKERS + 2, sessions.size
  end

  def test_each_worker_is_spoken_to_by_itself
    with_puma(**WAYS[:middleware]) do |master|
      worker, other, = ask_all_workers.keys
      [master, worker, other].each { |pid| within { sleep 0.05 until File.socket?(File.join(trace_dir, "ratrace-#{pid}.sock")) } }
      assert_match(/stopped/, ctl(worker, "stop"))
      assert_match(/^recording +false$/, ctl(worker, "status"))
      assert_match(/^recording +true$/, ctl(other, "status"))
      assert_match(/^recording +true$/, ctl(master, "status"))
      assert_match(/recording/, ctl(worker, "start"))
    end
  end

  def ctl(pid, request)
    outcome = run_process(RbConfig.ruby, "-w", EXE, "ctl", pid.to_s, request, "--dir", trace_dir)
    assert outcome.success?, outcome.err
    outcome.out
  end
end
