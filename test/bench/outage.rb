#!/usr/bin/env ruby
# frozen_string_literal: true

# Does it cost the host anything when nobody takes the recordings?
#
#   test/bench/outage.rb [--rounds N] [--seconds S] [--time-scale N]
#
# A handler like a Rack application's answers one request after the other, unrecorded, recorded, and recorded with a
# receiver that is well, refuses the connection, never answers, or reads slowly; in turns, a block of each a round.
# Told are the medians and 99th percentiles of a request's time, and their ratios to the recorded block of the same
# round; a second such block a round says how far two alike are apart. A block begins once there was an attempt to deliver,
# and waits between two attempts are divided by the time scale, so that an outage is felt more than a real one.

require "optparse"
require_relative "bench"
$LOAD_PATH.unshift(File.join(Bench::TOP, "lib"))
require "ratrace"
require_relative "../ruby/support/fault_server"

# A small application: routing, a model, a page. Some sixty calls a request.
class Shop
  Item = Struct.new(:id, :name, :cents)
  ITEMS = Array.new(12) { |id| Item.new(id, "item #{id}", (id * 137) + 99) }.freeze

  def call(env)
    status, body = route(env["REQUEST_METHOD"], env["PATH_INFO"], env["QUERY_STRING"])
    [status, headers(body), [body]]
  end

  private

  def route(verb, path, query)
    return [405, "no"] unless verb == "GET"

    case path
    when "/items" then [200, page(pick(parse(query)))]
    else [404, "not here"]
    end
  end

  def parse(query) = query.split("&").to_h { |pair| pair.split("=", 2) }
  def pick(options) = ITEMS.sort_by { |item| weight(item, options) }
  def weight(item, options) = options["sort"] == "price" ? -item.cents : item.id
  def page(items) = "<ul>#{items.map { |item| line(item) }.join}</ul>"
  def line(item) = "<li>#{escape(item.name)}: #{price(item)}</li>"
  def escape(text) = text.gsub("&", "&amp;")
  def price(item) = format_cents(item.cents)
  def format_cents(cents) = "#{cents / 100}.#{(cents % 100).to_s.rjust(2, "0")}"
  def headers(body) = { "content-type" => "text/html", "content-length" => body.bytesize.to_s }
end

# The receivers, in a process of their own, so that they take no lock of the host's.
class Receivers
  def initialize
    reader, writer = IO.pipe
    @pid = fork { serve(reader, writer) }
    writer.close
    ports = reader.gets.split.map(&:to_i)
    @urls = %i[healthy hole slow refused].zip(ports.map { |port| "http://127.0.0.1:#{port}/in" }).to_h
  end

  def url(name) = @urls.fetch(name)

  def close
    Process.kill(:KILL, @pid)
    Process.wait(@pid)
  end

  private

  def serve(reader, writer)
    reader.close
    servers = [nil, :black_hole, :trickle].map { |fault| FaultServer.new { fault || [200, {}, ""] } }
    nobody = TCPServer.new("127.0.0.1", 0)
    writer.puts [*servers.map(&:port), nobody.addr[1]].join(" ")
    nobody.close
    sleep
  end
end

# Blocks of requests, and what they took.
class OutageBench
  CASES = %i[unrecorded recorded again healthy refused hole slow].freeze
  EXPORTED = %i[healthy refused hole slow].freeze
  ENVIRONMENT = { "REQUEST_METHOD" => "GET", "PATH_INFO" => "/items", "QUERY_STRING" => "sort=price&page=1" }.freeze
  QUANTILES = { "p50" => 0.5, "p99" => 0.99 }.freeze
  WARM = 300
  SPOOL = 16 << 20
  PATIENCE = 5 # seconds until an attempt is under way

  def initialize(rounds:, seconds:, time_scale:)
    @rounds = rounds
    @seconds = seconds
    @time_scale = time_scale
    @folder, @aside = Bench.scratch("outage"), Bench.scratch("outage-aside")
    @app = Shop.new
    @found = Hash.new { |hash, name| hash[name] = [] }
    @sent = Hash.new { |hash, name| hash[name] = Hash.new(0) }
    @requests = 0
  end

  def run
    @receivers = Receivers.new
    warnings = $stderr.dup
    $stderr.reopen(File.join(@aside, "stderr"), "w") # what the exporter says of outages
    Ratrace.record(out_dir: @aside, include: __FILE__) { 3000.times { request } }
    @segments = Dir[File.join(@aside, "*.ratrace")]
    @rounds.times { |round| CASES.rotate(round).each { |name| @found[name] << block(name) } }
    print_all
  ensure
    $stderr.reopen(warnings) if warnings
    @receivers&.close
  end

  private

  def block(name)
    Bench.clear(@folder)
    export_to(@receivers.url(name)) if EXPORTED.include?(name)
    Ratrace.start(out_dir: @folder, period: 0.1, segment_size: 64 << 10, include: __FILE__) unless name == :unrecorded
    WARM.times { request }
    times = sample
    note(name) if EXPORTED.include?(name)
    times.sort!
    QUANTILES.transform_values { |part| times[(times.size * part).to_i] }
  ensure
    Ratrace.stop unless name == :unrecorded
    Ratrace::Native.exporter_stop(0)
  end

  def export_to(url)
    FileUtils.cp(@segments, @folder)
    Ratrace::Native.exporter_start({ out_dir: @folder, url: url, time_scale: @time_scale, spool_bytes: SPOOL })
    limit = Bench.wall + PATIENCE
    sleep 0.001 until Ratrace::Native.exporter_stats[:attempts].positive? || Bench.wall > limit
  end

  def request
    @app.call(ENVIRONMENT)
  end

  def sample
    times = []
    until_ns = now_ns + (@seconds * 1e9).to_i
    before = now_ns
    while before < until_ns
      request
      now = now_ns
      times << (now - before)
      before = now
    end
    @requests += times.size
    times
  end

  def now_ns = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)

  def note(name)
    stats = Ratrace::Native.exporter_stats
    %i[attempts delivered retried].each { |count| @sent[name][count] += stats[count] }
  end

  def print_all
    puts "outage: #{@rounds} rounds of #{CASES.size} blocks of #{@seconds} s, #{@requests} requests, time scale #{@time_scale}"
    QUANTILES.each_key do |what|
      puts "  #{what}, ratio to recorded; \"again\" is the noise"
      CASES.each { |name| puts line(name, what) }
    end
  end

  def line(name, what)
    times = @found[name].map { |found| found[what] / 1000.0 }
    ratios = @found[name].zip(@found[:recorded]).map { |one, other| one[what].fdiv(other[what]) }
    sent = " #{@sent[name].map { |count, n| "#{n} #{count}" }.join(", ")}" if @sent.key?(name)
    format("    %-10s %8.1f us  ratio %s%s", name, Bench.median(times), Bench.spread(ratios), sent)
  end
end

options = { rounds: 40, seconds: 0.5, time_scale: 20.0 }
OptionParser.new("usage: test/bench/outage.rb [options]") do |opts|
  opts.on("--rounds N", Integer, "default 40") { |n| options[:rounds] = n }
  opts.on("--seconds S", Float, "of each block; default 0.5") { |n| options[:seconds] = n }
  opts.on("--time-scale N", Float, "default 20") { |n| options[:time_scale] = n }
end.parse!(ARGV)
puts Bench.machine
OutageBench.new(**options).run
