# frozen_string_literal: true

require "fileutils"
require "ratrace/recording"
require "timeout"
require "tmpdir"

# Recordings made by a test, in a directory of their own, and what is asked of them.
module Recordings
  PATIENCE = 60 # seconds until something that should end counts as hanging

  def teardown
    Ratrace.stop if Ratrace.recording?
    FileUtils.rm_rf(@out_dir) if @out_dir
    super
  end

  def out_dir
    @out_dir ||= Dir.mktmpdir("ratrace-test")
  end

  def segments(dir = out_dir)
    Dir[File.join(dir, "*")].sort
  end

  def events_in(*paths)
    Ratrace::Recording.new(*paths).each_event.to_a
  end

  # How often each method of these names was called: { "leaf" => 3 }.
  def calls_in(*paths, of: nil)
    calls = events_in(*paths).select { |event| %w[call c_call].include?(event["type"]) }
    counts = calls.map { |event| event["method"] }.tally
    of ? counts.slice(*of) : counts
  end

  def account_of(*paths)
    Ratrace::Recording.new(*paths).account
  end

  # The files alone must explain every event, and no stack may contradict itself.
  def assert_sound(*paths)
    account_of(*paths)[:sessions].each do |session|
      session[:lanes].each do |lane|
        assert lane[:balanced], "lane #{lane} does not add up"
      end
    end
    assert_empty contradictions(events_in(*paths))
  end

  # Returns and unwinds of frames that were never opened, in a stream without losses.
  def contradictions(events)
    depths = Hash.new(0)
    events.each_with_object([]) do |event, found|
      key = event.values_at("session", "lane", "context")
      case event["type"]
      when "call", "c_call" then depths[key] += 1
      when "return", "c_return" then depths[key] -= 1
      when "unwind" then depths[key] -= event["count"]
      when "end" then depths[key] = 0
      when "snapshot"
        depths[key] = event["frames"].size
      end
      found << event if depths[key].negative?
    end
  end

  def within(seconds = PATIENCE, &block)
    Timeout.timeout(seconds, &block)
  end

  def wait_for(what)
    within { sleep 0.02 until yield }
  rescue Timeout::Error
    flunk "waited in vain for #{what}"
  end

  # Variables of this process, put back afterwards.
  def with_env(variables)
    before = variables.to_h { |name, _| [name, ENV.fetch(name, nil)] }
    variables.each { |name, value| ENV[name] = value }
    yield
  ensure
    before.each { |name, value| ENV[name] = value }
  end
end
