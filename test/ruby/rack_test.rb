# frozen_string_literal: true

require "test_helper"
require "support/processes"
require "support/recordings"

# Ratrace::Rack in a stack of middleware.
class RackTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  STACK = <<~'RUBY'
    require "rack"
    require "ratrace/rack"
    class App
      def call(_env) = [200, { "content-type" => "text/plain" }, [answer]]
      def answer = caller.grep(/ratrace/).size.to_s
    end
    APP = App.new
    stack = Rack::Builder.new { use Ratrace::Rack; run APP }.to_app
    answer = Rack::MockRequest.new(Rack::Lint.new(stack)).get("/")
    puts answer.status, answer.body, stack.equal?(APP), Ratrace.recording?
  RUBY

  def test_it_starts_the_agent_and_is_in_nobodys_way
    env = { "RATRACE_OUT_DIR" => out_dir, "RATRACE_CONTROL" => "0" }
    assert_equal "200\n0\ntrue\ntrue\n", run_code(STACK, env: env).out
    assert_equal 1, calls_in(out_dir)["answer"]
  end

  def test_with_a_wrong_setting_the_application_runs
    outcome = run_code(STACK, env: { "RATRACE_OUT_DIR" => out_dir, "RATRACE_PERIOD" => "x" })
    assert_equal "200\n0\ntrue\nfalse\n", outcome.out
    assert_equal 1, outcome.err.lines.grep(/\Aratrace: not recording: period/).size
  end

  def test_it_needs_no_rack
    assert_equal "5\n", run_code("require 'ratrace'\nputs Ratrace::Rack.new(5)", env: { "RATRACE_OUT_DIR" => out_dir }).out
  end
end
