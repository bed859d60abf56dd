# frozen_string_literal: true

require "socket"
require "test_helper"
require "support/processes"
require "support/recordings"

# The agent of a service: what it starts, what it keeps, what it sends, and how it ends.
class AgentTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  # Takes each request and answers 200; or takes it and says nothing.
  class Collector
    attr_reader :requests, :port

    def initialize(answers: true)
      @requests = Queue.new
      @server = TCPServer.new("127.0.0.1", 0)
      @port = @server.addr[1]
      @answers = answers
      @threads = [Thread.new { serve }]
    end

    def close
      @server.close
      @threads.each(&:kill).each(&:join)
    end

    private

    def serve
      loop do
        client = @server.accept
        @threads << Thread.new { answer(client) }
      end
    rescue IOError
      nil
    end

    def answer(client)
      while (line = client.gets)
        headers = {}
        while (header = client.gets.chomp) != ""
          name, value = header.split(": ", 2)
          headers[name.downcase] = value
        end
        client.write("HTTP/1.1 100 Continue\r\n\r\n") if headers["expect"]
        body = client.read(headers["content-length"].to_i)
        @requests << [line.split[0], line.split[1], headers, body]
        return sleep unless @answers

        client.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
      end
    rescue SystemCallError
      nil
    end
  end

  def run_service(code, env = {})
    env = { "RATRACE_OUT_DIR" => out_dir, "RATRACE_CONTROL" => "0", **env }
    run_code("require 'ratrace/agent'\ndef work = 1\n#{code}", env: env)
  end

  def with_collector(**options)
    collector = Collector.new(**options)
    yield collector
  ensure
    collector&.close
  end

  # ---------------------------------------------------------------- start

  def test_a_second_start_is_none
    out = run_service("p Ratrace::Agent.start, Ratrace::Agent.start, Ratrace.recording?").out
    assert_equal "true\ntrue\ntrue\n", out
    assert_equal 1, segments.size
  end

  def test_the_block_says_what_to_do
    run_service('Ratrace.configure { |c| c.service = "shop"; c.period = 0.02 }; Ratrace::Agent.start; work')
    assert_equal "shop", Ratrace::Recording.new(out_dir).sessions.first[:service]
    assert_equal({ "work" => 1 }, calls_in(out_dir))
  end

  def test_a_service_keeps_its_name_when_it_renames_its_process
    run_service(<<~'RUBY')
      $0 = "/srv/shop"
      Ratrace::Agent.start
      $0 = "shop: cluster worker 1"
      Ratrace.stop
      Ratrace::Agent.start
      Process.wait(fork { work })
    RUBY
    assert_equal %w[shop], Ratrace::Recording.new(out_dir).sessions.map { |session| session[:service] }.uniq
  end

  def test_segments_carry_the_tags
    run_service('Ratrace::Agent.start; work; Process.wait(fork { work })', { "RATRACE_TAGS" => "zone=größe,team=a%2Cb" })
    sessions = Ratrace::Recording.new(out_dir).sessions
    assert_equal [{ "zone" => "größe", "team" => "a,b" }] * 2, sessions.map { |session| session[:tags] }
  end

  def test_as_many_tags_as_are_allowed_come_back_whole
    tags = (1..64).to_h { |i| [format("tag-%02d", i), "x" * 10] }
    run_service("Ratrace.configure { |c| c.tags = #{tags} }; p Ratrace::Agent.start; work")
    assert_equal tags, Ratrace::Recording.new(out_dir).sessions.first[:tags]
  end

  def test_disabled_means_not_started
    out = run_service("p Ratrace::Agent.start, Ratrace.recording?", { "RATRACE_ENABLED" => "0" })
    assert_equal ["false\nfalse\n", ""], [out.out, out.err]
  end

  # ---------------------------------------------------------------- retention

  def test_the_oldest_closed_segments_go
    old = 3.times.map do |i|
      File.join(out_dir, "old-#{i}.ratrace").tap do |path|
        File.write(path, "x" * 600_000, perm: 0o600)
        File.utime(Time.now - 100 + i, Time.now - 100 + i, path)
      end
    end
    run_service(<<~RUBY, { "RATRACE_SPOOL_SIZE" => "1M", "RATRACE_SEGMENT_SIZE" => "64K" })
      Ratrace::Agent.start
      limit = Time.now + 30
      sleep 0.05 while Dir[File.join(ENV["RATRACE_OUT_DIR"], "old-*")].size > 1 && Time.now < limit
    RUBY
    assert_equal [old.last], Dir[File.join(out_dir, "old-*")]
  end

  # ---------------------------------------------------------------- delivery

  def test_segments_are_delivered_before_the_process_ends
    with_collector do |collector|
      outcome = run_service("Ratrace::Agent.start; work; p Ratrace.stats[:exporter][:running]",
                            { "RATRACE_EXPORT_URL" => "http://127.0.0.1:#{collector.port}/in?x=1",
                              "RATRACE_EXPORT_TOKEN" => "s3cr3t", "RATRACE_EXPORT_HEADERS" => "X-Team=a",
                              "RATRACE_SHUTDOWN_DEADLINE" => "30" })
      assert_equal ["true\n", ""], [outcome.out, outcome.err]
      method, path, headers, body = within { collector.requests.pop }
      assert_equal ["PUT", "Bearer s3cr3t", "a"], [method, headers["authorization"], headers["x-team"]]
      assert_match(%r{\A/in/.*\.ratrace}, path)
      assert_empty segments
      File.binwrite(File.join(out_dir, "got.ratrace"), body)
      assert_equal({ "work" => 1 }, calls_in(out_dir))
    end
  end

  def test_a_scripts_recording_is_delivered_too
    with_collector do |collector|
      run_service("Ratrace.start(export_url: 'http://127.0.0.1:#{collector.port}/', export_method: 'POST'); work; Ratrace.stop; work")
      assert_equal "POST", within { collector.requests.pop }.first
    end
  end

  def test_a_collector_that_says_nothing_costs_the_deadline_and_no_segment
    with_collector(answers: false) do |collector|
      before = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      outcome = run_service("Ratrace::Agent.start; work", { "RATRACE_EXPORT_URL" => "http://127.0.0.1:#{collector.port}/",
                                                            "RATRACE_SHUTDOWN_DEADLINE" => "0.5" })
      assert outcome.status.success?
      assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - before, :<, 20
      assert_equal 1, segments.grep(/\.ratrace\z/).size
    end
  end

  def test_children_deliver_too
    with_collector do |collector|
      run_service(<<~RUBY, { "RATRACE_EXPORT_URL" => "http://127.0.0.1:#{collector.port}/", "RATRACE_SHUTDOWN_DEADLINE" => "10" })
        Ratrace::Agent.start
        work
        Process.wait(fork { work; Ratrace.flush })
      RUBY
      paths = within { 2.times.map { collector.requests.pop[1] } }
      assert_equal 2, paths.uniq.size
    end
  end

  def test_where_delivery_cannot_start_it_is_recorded_all_the_same
    outcome = run_service("p Ratrace::Agent.start; work", { "RATRACE_EXPORT_URL" => "s3://no_region_no_keys/x" })
    assert_equal "true\n", outcome.out
    assert_match(/\Aratrace: not delivering: .+\n\z/, outcome.err)
    assert_equal({ "work" => 1 }, calls_in(out_dir))
  end
end
