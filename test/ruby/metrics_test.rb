# frozen_string_literal: true

require "json"
require "test_helper"
require "support/processes"
require "support/recordings"

# The numbers of Ratrace.stats as Prometheus reads them: judged by Prometheus' own Python client, which knows nothing of us.
class MetricsTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  PYTHON = "/usr/bin/python3" # Debian's, which has Debian's package

  # Text in, families as JSON out: [[name, type, help, [[sample name, labels, value], ...]], ...]
  READER = <<~PYTHON
    import json, sys
    from prometheus_client.parser import text_string_to_metric_families
    families = text_string_to_metric_families(sys.stdin.read())
    print(json.dumps([[f.name, f.type, f.documentation, [[s.name, s.labels, s.value] for s in f.samples]] for f in families]))
  PYTHON

  def families(text)
    out, err, status = Open3.capture3(PYTHON, "-c", READER, stdin_data: text)
    assert status.success?, err + text
    JSON.parse(out)
  end

  def samples(text)
    families(text).flat_map(&:last)
  end

  # Prints the numbers of a recording that has dropped, and the text made of the same.
  RECORDED = <<~RUBY
    require "ratrace"
    def work = 1
    Ratrace.configure { |c| c.service = "a \\"shop\\" \\\\ x"; c.tags = { "zone" => "größe", "1-2" => "x", "cause" => "z" } }
    Ratrace.start(out_dir: ARGV[0], slot_size: 16_384, period: 3600)
    30_000.times { work }
    Ratrace.flush
    stats = Ratrace.stats
    require "json"
    puts JSON.generate(stats), Ratrace::Metrics.text(stats)
  RUBY

  def recorded
    stats, *text = run_well(RECORDED, out_dir).lines
    [JSON.parse(stats), text.join]
  end

  def test_the_service_is_the_one_in_the_segments
    text = run_well("require 'ratrace'; Ratrace.start(out_dir: ARGV[0]); puts Ratrace::Metrics.text", out_dir)
    assert_equal [Ratrace::Recording.new(out_dir).sessions.first[:service]], samples(text).map { |_, labels,| labels["service"] }.uniq
  end

  def test_every_number_is_that_of_the_stats
    stats, text = recorded
    found = samples(text).to_h { |name, labels, value| [[name, labels["cause"]], value] }

    assert_operator stats["dropped"], :>, 0
    assert_equal stats["drops"], stats["drops"].to_h { |cause, _| [cause, found[["ratrace_dropped_events_total", cause]]] }
    { "ratrace_events_total" => "events", "ratrace_written_bytes_total" => "bytes", "ratrace_segments_total" => "segments",
      "ratrace_names" => "names" }.each { |name, key| assert_equal stats[key], found[[name, "z"]], name }
    assert_in_delta stats["encode_ns"] / 1e9, found[["ratrace_encode_seconds_total", "z"]], 1e-12
    assert_equal 1, found[["ratrace_recording", "z"]]
  end

  def test_names_types_and_help_are_as_prometheus_wants_them
    found = families(recorded.last)
    assert_operator found.size, :>, 15
    found.each do |name, type, help, samples|
      assert_match(/\Aratrace_[a-z_]+\z/, name)
      assert_includes %w[counter gauge], type
      refute_empty help
      refute_empty samples
      samples.each do |sample, labels, value|
        assert_equal type == "counter", sample.end_with?("_total"), sample
        assert_operator value, :>=, 0
        assert_equal labels, labels.slice("pid", "service", "zone", "_1_2", "cause", "what", "bound")
      end
      assert_equal samples.uniq { |sample| sample.first(2) }, samples, "a series twice"
    end
  end

  def test_labels_survive_whatever_is_in_them
    _, labels, = samples(recorded.last).first
    assert_equal ["a \"shop\" \\ x", "größe", "x"], labels.values_at("service", "zone", "_1_2")
  end

  def test_without_a_recording_it_says_so
    text = run_well('require "ratrace"; puts Ratrace::Metrics.text')
    assert_equal [["ratrace_recording", 0.0]], samples(text).map { |name, _, value| [name, value] }
  end

  def test_what_is_off_is_a_series_and_its_reason_is_in_the_stats
    text = run_well(<<~RUBY, out_dir, env: { "RATRACE_LIVE_DIR" => out_dir })
      require "ratrace"
      Ratrace.start(out_dir: ARGV[0], frame_words: false)
      p Ratrace.stats[:off].to_a
      puts Ratrace::Metrics.text
    RUBY
    off, text = text.split("\n", 2)
    assert_match(/:frame_words, "frame_words is off"\], \[:live_file, ".* is not on tmpfs"/, off)
    assert_equal(%w[frame_words live_file], samples(text).select { |name,| name == "ratrace_off" }.map { |_, labels,| labels["what"] })
  end

  # ---------------------------------------------------------------- Rack

  RACK = <<~'RUBY'
    require "rack"
    require "ratrace"
    Ratrace.start(out_dir: ARGV[0])
    app = Rack::MockRequest.new(Rack::Lint.new(Ratrace::Metrics))
    get, head, post = app.get("/x"), app.request("HEAD", "/"), app.post("/")
    puts get.status, get.headers.to_h { |k, v| [k.downcase, v] }["content-type"], head.status, head.body.size, post.status
    print get.body
  RUBY

  def test_it_is_a_rack_application
    status, type, head, head_size, post, *text = run_well(RACK, out_dir).lines(chomp: true)
    assert_equal ["200", "text/plain; version=0.0.4; charset=utf-8", "200", "0", "405"], [status, type, head, head_size, post]
    assert_includes samples("#{text.join("\n")}\n").map(&:first), "ratrace_events_total"
  end

  # ---------------------------------------------------------------- the file

  SERVICE = <<~RUBY
    require "ratrace"
    $stdout.sync = true
    Ratrace::Agent.start
    puts Process.pid
    $stdin.read
  RUBY

  def metrics_dir
    @metrics_dir ||= File.join(out_dir, "metrics").tap { |dir| Dir.mkdir(dir) }
  end

  # A service that writes its file; the block gets its pid and the file's path. Its standard error.
  def with_service(env = {}, code: SERVICE)
    env = { "RATRACE_OUT_DIR" => File.join(out_dir, "trace"), "RATRACE_CONTROL" => "0", "RATRACE_PERIOD" => "0.05",
            "RATRACE_METRICS_FILE" => File.join(metrics_dir, "ratrace.prom"), **env }
    outcome = run_code(code, env: env) do |_, stdin, out|
      pid = out.gets.to_i
      yield pid, File.join(metrics_dir, "ratrace-#{pid}.prom"), stdin
      stdin.close
      ""
    end
    assert outcome.status.success?
    outcome.err
  end

  def test_the_file_is_whole_renewed_readable_and_goes_with_the_process
    path = nil
    err = with_service do |_, file|
      path = file
      wait_for("the file") { File.exist?(path) }
      first = File.stat(path)
      assert_equal 0o644, first.mode & 0o777
      wait_for("a newer file") { File.stat(path).ino != first.ino }
      20.times { assert_includes samples(File.read(path)).map(&:first), "ratrace_events_total" }
    end
    assert_empty err
    assert_empty Dir.children(metrics_dir)
  end

  def test_each_process_has_its_file
    code = SERVICE.sub("$stdin.read", "child = fork { sleep }; puts child; $stdin.read; Process.kill(:TERM, child); Process.wait(child)")
    with_service(code: code) { wait_for("two files") { Dir[File.join(metrics_dir, "ratrace-*.prom")].size == 2 } }
    assert_empty Dir.children(metrics_dir)
  end

  def test_files_of_dead_processes_are_removed_and_no_others
    dead = Process.wait(spawn("true"))
    stale, fresh, living, foreign, linked = ["ratrace-#{dead}.prom", "ratrace-99999999.prom", "ratrace-#{Process.pid}.prom",
                                             "ratrace-x.prom", "ratrace-#{dead}1.prom"].map { |name| File.join(metrics_dir, name) }
    [stale, fresh, living, foreign].each { |path| File.write(path, "old 1\n") }
    File.symlink(living, linked)
    [stale, living, foreign].each { |path| File.utime(Time.now - 1000, Time.now - 1000, path) }
    with_service { |_, path| wait_for("the file") { File.exist?(path) } }

    assert_equal [fresh, living, foreign, linked].sort, Dir[File.join(metrics_dir, "*")].sort
  end

  def test_links_in_its_place_are_replaced_or_refused_and_never_followed
    treasure = File.join(out_dir, "treasure")
    File.write(treasure, "gold")
    code = <<~RUBY
      path = ENV["RATRACE_METRICS_FILE"].sub(".prom", "-\#{Process.pid}.prom")
      File.symlink(#{treasure.inspect}, path)
      File.symlink(#{treasure.inspect}, path + ".new") if ENV["BOTH"]
      #{SERVICE.sub("$stdin.read", "sleep 0.02 until Ratrace.stats[:off][:metrics_file] || !File.symlink?(path); p Ratrace.stats[:off][:metrics_file]; $stdin.read")}
    RUBY
    with_service(code: code) { |_, path| wait_for("the file") { File.file?(path) && !File.symlink?(path) } }
    with_service({ "BOTH" => "1" }, code: code) { |_, path| wait_for("the link") { File.symlink?(path) } }
    assert_equal "gold", File.read(treasure)
  end

  # The signal that goes with it would end the process.
  def test_a_limit_of_file_sizes_is_told_and_harms_nobody
    code = SERVICE.sub("puts Process.pid", "Process.setrlimit(:FSIZE, 100, Process::RLIM_INFINITY); " \
                                           "sleep 0.02 until Ratrace.stats[:off][:metrics_file]; puts Process.pid")
                  .sub("$stdin.read", "$stdin.read; warn Ratrace.stats[:off][:metrics_file]")
    assert_match(/\AFile too large - /, with_service(code: code) { nil })
    assert_empty Dir.children(metrics_dir)
  end

  def test_a_directory_there_is_not_is_told_and_harms_nobody
    code = SERVICE.sub("puts Process.pid", "sleep 0.02 until Ratrace.stats[:off][:metrics_file]; puts Process.pid")
                  .sub("$stdin.read", "$stdin.read; warn Ratrace.stats[:off][:metrics_file]")
    err = with_service({ "RATRACE_METRICS_FILE" => "/nowhere/at/all.prom" }, code: code) { nil }
    assert_match(%r{\ANo such file or directory @ .*/nowhere/at/all-\d+\.prom\.new\n\z}, err)
  end
end
