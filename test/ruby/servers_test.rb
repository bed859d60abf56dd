# frozen_string_literal: true

require "socket"
require "test_helper"
require "support/processes"
require "support/recordings"

# Servers other than Puma: real ones where they are installed (bin/setup --ci), and what they have in common with plain
# forks.
class ServersTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  def trace_dir
    File.join(out_dir, "trace")
  end

  def app_dir
    File.join(out_dir, "app").tap { |dir| FileUtils.mkdir_p(dir) }
  end

  def write(name, text)
    File.write(File.join(app_dir, name), text)
  end

  def need(command)
    found = ENV["PATH"].split(":").any? { |dir| File.executable?(File.join(dir, command)) }
    skip "needs #{command}: bin/setup --ci" unless found
  end

  def start(*command, env: {}, **options, &block)
    env = { "RUBYLIB" => LIB, "RATRACE_OUT_DIR" => trace_dir, "RATRACE_PERIOD" => "0.1", **env }
    run_process(*command, env: env, chdir: app_dir, **options, &block).tap { |outcome| refute outcome.timed_out, outcome.out + outcome.err }
  end

  def calls_by_pid(method)
    events = events_in(trace_dir).select { |event| event["type"] == "call" && event["method"] == method }
    events.map { |event| event["process"] }.tally
  end

  def sessions
    Ratrace::Recording.new(trace_dir).sessions
  end

  # ---------------------------------------------------------------- fork per job

  # As Resque works: a parent that lives, a child a job, which ends without at_exit. Nothing is set for it.
  def test_jobs_that_end_without_at_exit_are_all_recorded
    write("worker.rb", <<~RUBY)
      def job = sleep(0.05)
      def between_jobs = 1
      20.times do
        between_jobs
        Process.wait(fork { job; exit!(0) })
      end
    RUBY
    outcome = start(RbConfig.ruby, "worker.rb", env: { "RUBYOPT" => "-w -rratrace/auto" })
    assert_equal ["", ""], [outcome.out, outcome.err]
    assert run_process(RbConfig.ruby, EXE, "recover", trace_dir).success?

    assert_equal [1] * 20, calls_by_pid("job").values
    assert_equal [20], calls_by_pid("between_jobs").values
    parent = sessions.find { |session| session[:parent].nil? }
    assert_equal [parent[:id]] * 20, sessions.filter_map { |session| session[:parent] }
    assert_sound(trace_dir)
  end

  # As Unicorn, Passenger and others work: a master that loads, and an after_fork of theirs.
  def test_children_of_an_unrecorded_master_start_by_themselves
    write("server.rb", <<~RUBY)
      require "ratrace"
      def work = 1
      workers = 3.times.map { fork { Ratrace::Agent.start; work } }
      workers.each { |pid| Process.wait(pid) }
      p Ratrace.recording?
    RUBY
    outcome = start(RbConfig.ruby, "-w", "server.rb")
    assert_equal ["false\n", ""], [outcome.out, outcome.err]
    assert_equal [1, 1, 1], calls_by_pid("work").values
    assert_equal [nil], sessions.map { |session| session[:parent] }.uniq
  end

  # ---------------------------------------------------------------- Unicorn

  def test_unicorns_workers_give_linked_streams
    need("unicorn")
    write("app.rb", "class App\n  def call(_) = [200, { 'content-type' => 'text/plain' }, [answer]]\n  def answer = Process.pid.to_s\nend\n")
    write("config.ru", "require_relative 'app'\nrequire 'ratrace/rack'\nuse Ratrace::Rack\nrun App.new\n")
    write("unicorn.rb", "worker_processes 2\npreload_app true\nlisten '#{out_dir}/unicorn.sock'\n")
    answers = Hash.new(0)
    start("unicorn", "-c", "unicorn.rb", "-E", "none") do |pid, _, _|
      wait_for("unicorn") { File.socket?(File.join(out_dir, "unicorn.sock")) }
      within do
        until answers.size == 2
          8.times.map { Thread.new { get("unicorn.sock") } }.each { |thread| answers[thread.value.to_i] += 1 }
        end
      end
      Process.kill(:QUIT, pid)
      ""
    end

    assert_equal answers, calls_by_pid("answer")
    master = sessions.find { |session| session[:parent].nil? }
    assert_equal [master[:id]] * 2, sessions.filter_map { |session| session[:parent] }
    assert_sound(trace_dir)
  end

  def get(socket)
    UNIXSocket.open(File.join(out_dir, socket)) do |connection|
      connection.write("GET / HTTP/1.0\r\n\r\n")
      connection.read.split("\r\n\r\n", 2).last
    end
  end

  # ---------------------------------------------------------------- Sidekiq

  def with_redis
    %w[redis-server sidekiq].each { |command| need(command) }
    socket = File.join(out_dir, "redis.sock")
    pid = spawn("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", out_dir,
                out: File::NULL, err: File::NULL)
    wait_for("redis") { File.socket?(socket) }
    yield "unix://#{socket}"
  ensure
    if pid
      Process.kill(:TERM, pid)
      Process.wait(pid)
    end
  end

  SIDEKIQ = <<~RUBY
    require "sidekiq"
    require "ratrace/sidekiq"
    class Job
      include Sidekiq::Worker
      def perform(path) = File.write(path, done)
      def done = Process.pid.to_s
    end
  RUBY

  def test_sidekiqs_jobs_are_recorded_and_its_clients_are_not
    with_redis do |url|
      write("app.rb", SIDEKIQ)
      env = { "REDIS_URL" => url }
      paths = 5.times.map { |i| File.join(out_dir, "done-#{i}") }
      client = start(RbConfig.ruby, "-r./app", "-e", "ARGV.each { |path| Job.perform_async(path) }; puts Ratrace.recording?", *paths, env: env)
      assert_equal "false\n", client.out, client.err
      refute_path_exists trace_dir

      outcome = start("sidekiq", "-r", "./app.rb", "-c", "2", env: env) do |pid, _, _|
        wait_for("the jobs") { paths.all? { |path| File.size?(path) } }
        Process.kill(:TERM, pid)
        ""
      end
      assert outcome.status.success?, outcome.err
      assert_equal({ "perform" => 5, "done" => 5 }, calls_in(trace_dir, of: %w[perform done]))
      assert_equal ["sidekiq"], sessions.map { |session| session[:service] }
    end
  end

  # ---------------------------------------------------------------- Rails

  RAILS = <<~RUBY
    require "rails"
    require "ratrace/rails"
    module Shop; end
    class Shop::Application < Rails::Application
      config.root = __dir__
      config.eager_load = false
      config.logger = Logger.new(nil)
      config.ratrace.period = 0.25
      config.ratrace.service = "rails-shop"
      SETTING
    end
    Shop::Application.initialize!
    require_relative "model"
    Model.new.price
    puts Ratrace.recording?, Ratrace.configuration.period, Ratrace.configuration.source(:period)
  RUBY

  def rails(setting = "")
    skip "needs railties" if Gem::Specification.find_all_by_name("railties").empty?
    write("app.rb", RAILS.sub("SETTING", setting))
    write("model.rb", "class Model\n  def price = 5\nend\n")
    start(RbConfig.ruby, "app.rb", env: { "RATRACE_CONTROL" => "0" })
  end

  def test_a_rails_application_is_recorded_from_its_initializers_on
    outcome = rails
    assert_equal ["true\n0.25\nconfigure block\n", true], [outcome.out, outcome.status.success?], outcome.err
    assert_equal({ "price" => 1 }, calls_in(trace_dir, of: ["price"]))
    assert_equal ["rails-shop"], sessions.map { |session| session[:service] }
  end

  def test_a_rails_application_with_a_wrong_setting_starts_unrecorded
    outcome = rails("config.ratrace.slot_size = 5")
    assert_equal "false\n", outcome.out.lines.first
    assert_equal 1, outcome.err.lines.grep(/\Aratrace: not recording: slot_size: 5 in the configure block is not allowed/).size
  end
end
