# frozen_string_literal: true

require "digest"
require "json"
require "fileutils"
require "ratrace/recording"
require "tmpdir"
require_relative "certificates"
require_relative "fault_server"
require_relative "processes"

# Spools to ship, the command that ships them, and what must hold afterwards.
module Shipping
  include Recordings
  include Processes

  SEGMENTS = 12
  RECORD = <<~RUBY
    require "ratrace"
    def step; end
    #{SEGMENTS}.times { Ratrace.record(out_dir: ARGV.first) { 2000.times { step } } }
  RUBY
  MAKING = Mutex.new
  FAST = { "RATRACE_SHIP_TIME_SCALE" => "100", "RATRACE_SHIP_TOKEN" => nil, "RATRACE_SHIP_HEADERS" => nil,
           "http_proxy" => nil, "https_proxy" => nil, "all_proxy" => nil, "no_proxy" => nil }.freeze

  class << self
    # A directory of closed segments, recorded once a run.
    def original(test)
      MAKING.synchronize do
        @original ||= Dir.mktmpdir("ratrace-test").tap do |dir|
          Minitest.after_run { FileUtils.rm_rf(dir) }
          test.run_well(RECORD, dir)
        end
      end
    end
  end

  def teardown
    @background&.each { |pid| end_process(pid) }
    @servers&.each(&:close)
    @dirs&.each { |dir| FileUtils.rm_rf(dir) }
    super
  end

  def dir(name = "ratrace-test")
    Dir.mktmpdir(name).tap { |made| (@dirs ||= []) << made }
  end

  # A copy of `count` recorded segments.
  def spool(count = 3)
    original = Shipping.original(self)
    dir.tap { |made| Dir.children(original).sort.first(count).each { |name| FileUtils.cp(File.join(original, name), made) } }
  end

  def server(**options, &decide)
    FaultServer.new(**options, &decide).tap { |made| (@servers ||= []) << made }
  end

  # { "name" => content } of what waits; what is delivered meanwhile does not.
  def waiting(dir)
    Dir.children(dir).grep(/\.ratrace\z/).filter_map do |name|
      [name, File.binread(File.join(dir, name))]
    rescue Errno::ENOENT
      nil
    end.to_h
  end

  # `ratrace ship`, ended by --once or by the block, which gets its pid, stdin and stderr.
  def ship(dir, *arguments, env: {}, **options, &block)
    outcome = run_process(RbConfig.ruby, "-w", "-W:no-experimental", EXE, "ship", dir, *arguments,
                          env: { **FAST, **env }, **options, &block)
    refute outcome.timed_out, "hung:\n#{outcome.err}"
    refute_match(/warning: /, outcome.err)
    outcome
  end

  # ... in the background; the pid.
  def ship_in_background(dir, *arguments, env: {})
    pid = Process.spawn({ **NEUTRAL, "RATRACE_LIVE_DIR" => live_dir, **FAST, **env }, RbConfig.ruby, EXE, "ship", dir,
                        *arguments, out: File::NULL, err: File::NULL)
    (@background ||= []) << pid
    pid
  end

  def end_process(pid, signal = :KILL)
    @background.delete(pid)
    Process.kill(signal, pid)
    Process.wait(pid)
  end

  def until_true(what)
    limit = now + Recordings::PATIENCE
    until yield
      flunk "in vain: #{what}" if now > limit
      sleep 0.01
    end
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  # Everything that waited arrived as it was, each under a key of its own, and waits no longer.
  def assert_delivered(before, dir, server)
    assert_empty waiting(dir)
    assert_equal before.values.sort, server.bodies.values.sort
    assert_equal before.values.map { |bytes| key_of(bytes) }.sort, server.keys
    server.stored.each_value { |bodies| assert_equal 1, bodies.uniq.size, "two contents under one key" }
  end

  # The idempotency key, from the segment's own words: fields 4, 5 and 6 of its first chunk (trace.proto).
  def key_of(bytes)
    head = bytes.byteslice(0, 200)
    at = head.index("\x0A\x10\x89RAT".b) + 18
    at += 5 # size
    at += 2 if head.getbyte(at) == 0x18 # requires
    hi, lo = [at + 1, at + 10].map { |from| head.byteslice(from, 8).unpack1("Q<") }
    format("%016x%016x-%06d", hi, lo, head.getbyte(at + 19))
  end
end
