# frozen_string_literal: true

require "tempfile"
require "test_helper"
require "ratrace/settings_table"
require "support/processes"
require "support/recordings"

# What ratrace is asked to do: the sources, their order, the checks, and what an error tells.
class ConfigurationTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  def configuration(arguments = {}, **more)
    Ratrace::Configuration.new(arguments, **{ env: {} }.merge(more))
  end

  def errors(...)
    assert_raises(Ratrace::ConfigurationError) { configuration(...) }.message.lines(chomp: true)
  end

  def yaml(text)
    file = Tempfile.new(["ratrace", ".yml"], out_dir)
    File.write(file.path, text)
    (@kept ||= []) << file
    file.path
  end

  # ---------------------------------------------------------------- sources

  def test_without_a_source_every_setting_has_its_default
    settings = configuration
    Ratrace::Settings::ALL.each_key { |name| assert_equal "default", settings.source(name) }
    assert_equal [1.0, 8 << 20, 64 << 20, 3600.0, 0o600, 0.02, 1.0],
                 [settings.period, settings.slot_size, settings.segment_size, settings.segment_age, settings.file_mode,
                  settings.max_overhead, settings.shutdown_deadline]
  end

  def test_each_source_beats_those_before_it
    path = yaml("period: 2\nsegment_age: 20\nspool_age: 200\nmax_overhead: 0.2\n")
    env = { "RATRACE_CONFIG" => path, "RATRACE_SEGMENT_AGE" => "30", "RATRACE_SPOOL_AGE" => "300",
            "RATRACE_MAX_OVERHEAD" => "0.3" }
    settings = configuration({ max_overhead: 0.5 }, env: env, block: { spool_age: 400, max_overhead: 0.4 })

    found = %i[slot_size period segment_age spool_age max_overhead].map { |name| [settings.public_send(name), settings.source(name)] }
    assert_equal [[8 << 20, "default"], [2.0, path], [30.0, "RATRACE_SEGMENT_AGE"], [400.0, "configure block"],
                  [0.5, "argument"]], found
  end

  TEXTS = {
    enabled: ["off", false], out_dir: ["/nowhere/x", "/nowhere/x"], service: %w[shop shop], file_mode: ["0640", 0o640],
    tags: ["zone=a,note=1%2C5", { "zone" => "a", "note" => "1,5" }], period: ["0.5", 0.5], slot_size: ["64K", 65_536],
    segment_size: ["1MiB", 1 << 20], c_calls: ["1", true], include: ["a/*.rb, b/*.rb", ["a/*.rb", "b/*.rb"]],
    trace: ["app/**/*.rb,Billing::*#charge,Shop.open",
            { files: ["app/**/*.rb"], methods: ["Billing::*#charge", "Shop.open"] }],
    export_headers: ["X-Team=a b", { "X-Team" => "a b" }], clock: %w[monotonic monotonic],
    export_url: ["http://localhost:65535/x", "http://localhost:65535/x"]
  }.freeze

  TEXTS.each do |name, (text, value)|
    define_method("test_the_environment_gives_#{name}") do
      assert_equal value, configuration(env: { "RATRACE_#{name.upcase}" => text }).public_send(name)
    end

    define_method("test_a_text_in_the_file_gives_#{name}") do
      path = yaml("#{name}: #{text.inspect}\n")
      assert_equal value, configuration(env: { "RATRACE_CONFIG" => path }).public_send(name)
    end
  end

  def test_yaml_has_its_own_numbers_lists_and_maps
    path = yaml("period: 2\nslot_size: 65536\nfile_mode: 0640\ninclude: [a, b]\ntags: {zone: 1}\n" \
                "trace:\n  files: app/**/*.rb\n")
    settings = configuration(env: { "RATRACE_CONFIG" => path })

    assert_equal [2.0, 65_536, 0o640, %w[a b], { "zone" => "1" }, { files: ["app/**/*.rb"], methods: [] }],
                 %i[period slot_size file_mode include tags trace].map { |name| settings.public_send(name) }
  end

  def test_an_empty_variable_is_none
    assert_equal 1.0, configuration(env: { "RATRACE_PERIOD" => "", "RATRACE_CONFIG" => "" }).period
  end

  def test_disabled_beats_everything
    refute configuration({ enabled: true }, env: { "RATRACE_DISABLED" => "1" }).enabled
  end

  # ---------------------------------------------------------------- the file

  def test_an_unknown_key_is_refused_by_name
    path = yaml("perod: 2\n7: x\n")
    first, second = errors(env: { "RATRACE_CONFIG" => path })

    assert_match(/\Aunknown setting perod in #{path}: allowed are enabled, /, first)
    assert_match(/\Aunknown setting 7 in #{path}: /, second)
  end

  BROKEN = {
    "--- !ruby/object:Object {}\n" => /is not plain YAML/, "a: &x 1\nb: *x\n" => /is not plain YAML/,
    "a: [\n" => /is not plain YAML/, "- period\n" => /holds no settings/, "period\n" => /holds no settings/
  }.freeze

  def test_a_file_that_is_no_list_of_settings_is_one_line
    BROKEN.each do |text, complaint|
      path = yaml(text)
      lines = errors(env: { "RATRACE_CONFIG" => path })
      assert_equal 1, lines.size, text
      assert_match(/#{path}.*#{complaint}/, lines.first)
    end
  end

  def test_a_file_that_cannot_be_read_is_one_line
    ["/nothing/here.yml", "/dev/zero", out_dir, "a\0b"].each do |path|
      lines = errors(env: { "RATRACE_CONFIG" => path })
      assert_equal ["#{path} of RATRACE_CONFIG cannot be read"], lines.map { |line| line[/.*cannot be read/] }, path
    end
    assert_match(/of RATRACE_CONFIG is too large/, errors(env: { "RATRACE_CONFIG" => yaml("# #{"x" * (1 << 20)}\n") }).first)
  end

  # ---------------------------------------------------------------- errors

  WRONG = {
    period: [0, "1", nil, 1e9], slot_size: [1, 65_537, "64K"], segment_size: [65_535, 2**40], file_mode: [0o644, "0600", 0],
    max_overhead: [0, 1.1], shutdown_deadline: [-1, 61], tags: [[], { "a" => "b\nc" }, { [] => 1 }], service: ["", "a\nb", 5],
    trace: ["app", {}, { file: "x" }, { methods: "charge" }, { files: [] }], clock: %w[tsc], export_method: %w[GET],
    export_url: ["ftp://x/", "x", "http://", "http://user:pw@host/", "http://host:0/", "http://host:65536/"],
    export_headers: [{ "a b" => "c" }, { "a" => "b\r\nc" }],
    metrics_file: ["/tmp", ""], enabled: ["on", 1], export_token_file: ["/tmp"]
  }.freeze

  WRONG.each do |name, values|
    define_method("test_a_wrong_#{name}_is_refused") do
      values.each do |value|
        lines = errors({ name => value })
        assert_equal 1, lines.size, lines.inspect
        assert_match(/\A#{name}: .* is not allowed; use \S+/, lines.first)
      end
    end
  end

  def test_tags_have_a_bound_in_all
    assert_equal 1, configuration({ tags: { "a" => "b" * 1023 } }).tags.size
    assert_equal ["use at most 1024 bytes in all"], errors({ tags: { "a" => "b" * 1000, "c" => "d" * 23 } }).map { |line| line[/use .*/] }
    assert_equal 2, configuration({ export_headers: { "a" => "b" * 1000, "c" => "d" * 1000 } }).export_headers.size
  end

  def test_every_bound_is_allowed_itself_and_nothing_beyond
    numbers = Ratrace::Settings::ALL.values.select(&:range)
    refute_empty numbers
    numbers.each do |setting|
      [setting.range.min, setting.range.max].each { |bound| assert_equal bound, setting.check(bound) }
      [setting.range.min - (setting.step || 1), setting.range.max + (setting.step || 1)].each do |beyond|
        assert_raises(Ratrace::Setting::Refused, "#{setting.name} #{beyond}") { setting.check(beyond) }
      end
    end
  end

  def test_every_default_is_allowed
    Ratrace::Settings::ALL.each_value { |setting| setting.check(setting.default) }
  end

  def test_all_mistakes_are_told_at_once_with_their_sources
    path = yaml("segment_age: 0\n")
    lines = errors({ c_calls: 1 }, env: { "RATRACE_CONFIG" => path, "RATRACE_PERIOD" => "soon" }, block: { slot_size: 5 })

    assert_equal ["period: \"soon\" of RATRACE_PERIOD is not allowed; use seconds between 0.01 and 3600",
                  "slot_size: 5 in the configure block is not allowed; use bytes between 16384 and 33554432, a multiple of 4096",
                  "segment_age: 0 of #{path} is not allowed; use seconds between 1 and 604800",
                  "c_calls: 1 is not allowed; use true or false"], lines
  end

  def test_what_is_wrong_only_together_is_refused
    assert_equal ["period: 60.0 of argument is not allowed; use at most segment_age (30.0)"],
                 errors({ period: 60, segment_age: 30 })
    assert_match(/\Asegment_size: /, errors({ segment_size: 64 << 20, spool_size: 1 << 20 }).first)
    assert_match(/\Afinalize_url: .* use export_url, too/, errors({ finalize_url: "https://x/" }).first)
  end

  # ---------------------------------------------------------------- secrets

  SECRET = "s3cr3t-Pa55"

  def test_a_token_goes_over_tls_or_stays_here
    %w[http://collector/x http://127.evil.example/ http://127.0.0.1.evil.example/ http://localhost.example/].each do |url|
      assert_match(/\Aexport_token: set .* use https in export_url/, errors({ export_token: SECRET, export_url: url }).first)
    end
    %w[https://collector/x http://localhost/ http://127.0.0.1:80/ http://[::1]/].each do |url|
      assert_equal url, configuration({ export_token: SECRET, export_url: url }).export_url
    end
  end

  def test_a_secret_may_come_from_a_file
    path = yaml("#{SECRET}\n")
    settings = configuration(env: { "RATRACE_EXPORT_TOKEN_FILE" => path })

    assert_equal [SECRET, path], [settings.export_token, settings.source(:export_token)]
    assert_match(/nothing of export_token_file cannot be read/, errors({ export_token_file: "/nothing" }).first)
  end

  def test_no_secret_is_ever_shown
    settings = configuration({ export_token: SECRET, export_headers: { "X-Key" => SECRET },
                               export_url: "https://host/?key=#{SECRET}" })

    refute_includes settings.inspect + settings.to_s + Ratrace::Settings::ALL.keys.map { |name| settings.show(name) }.join, SECRET
    assert_equal ["set", "set", "\"https://host/?***\""], %i[export_token export_headers export_url].map { |name| settings.show(name) }
    assert_equal ["not set"] * 2, %i[export_token export_headers].map { |name| configuration.show(name) }
  end

  def test_no_secret_is_in_an_error
    [{ export_token: "#{SECRET}\n" }, { export_headers: { "a" => "#{SECRET}\n" } }, { export_headers: SECRET },
     { export_url: "https://user:#{SECRET}@host/" }, { proxy: "ftp://user:#{SECRET}@host" },
     { export_url: "ftp://host/?key=#{SECRET}" }].each do |wrong|
      lines = errors(wrong)
      assert_equal 1, lines.size
      refute_includes lines.first, SECRET
    end
    refute_includes errors({ export_token_file: yaml("#{SECRET}\n\nmore") }).first, SECRET
  end

  # ---------------------------------------------------------------- what is made of it

  def test_a_configuration_is_frozen_through_and_through
    settings = configuration({ tags: { "a" => "b" }, include: ["a"], trace: { files: "x" } })
    assert_predicate settings, :frozen?
    settings.to_h.each_value { |value| assert_predicate value, :frozen? }
    [settings.tags["a"], settings.include.first, settings.trace[:files], settings.trace[:files].first].each do |part|
      assert_predicate part, :frozen?
    end
  end

  def test_the_block_of_configure
    out = run_well(<<~RUBY, out_dir)
      require "ratrace"
      before = Ratrace.configuration.period
      Ratrace.configure { |c| c.period = 2; c.out_dir = ARGV[0]; c.trace files: "app/**/*.rb", methods: "Billing::*#charge" }
      Ratrace.configure { |c| c.segment_age = 99 }
      now = Ratrace.configuration
      p before, now.period, now.segment_age, now.trace.to_a, now.source(:period), now.frozen?
      begin
        Ratrace.configure { |c| c.period = 0 }
      rescue Ratrace::ConfigurationError => e
        puts e.message
      end
      begin
        Ratrace.configure { |c| c.perod = 5 }
      rescue Ratrace::ConfigurationError => e
        puts e.message[0, 48]
      end
      p Ratrace.configuration.equal?(now)
    RUBY
    assert_equal <<~TEXT, out
      1.0
      2.0
      99.0
      [[:files, ["app/**/*.rb"]], [:methods, ["Billing::*#charge"]]]
      "configure block"
      true
      period: 0 in the configure block is not allowed; use seconds between 0.01 and 3600
      unknown setting perod in the configure block: al
      true
    TEXT
  end

  def test_nothing_is_loaded_that_is_not_used
    out = run_well('before = $LOADED_FEATURES.dup; require "ratrace"; puts $LOADED_FEATURES - before')
    assert_empty(out.lines.reject { |line| line.start_with?(LIB) })
  end

  # A gem loaded before the host's Gemfile is read is one the host cannot choose any more.
  def test_a_file_is_read_without_loading_yaml
    out = run_well(<<~RUBY, yaml("period: 7\n"), yaml("a: [\n"), yaml("service: größe\n"))
      require "ratrace"
      gems = Gem.loaded_specs.keys
      ENV["RATRACE_CONFIG"] = ARGV[0]
      p Ratrace.configuration.period, defined?(Psych), Gem.loaded_specs.keys - gems, $?, Thread.list.size
      ENV["RATRACE_CONFIG"] = ARGV[1]
      begin
        Ratrace.start
      rescue Ratrace::ConfigurationError => e
        puts e.message[/is not plain YAML: .*/]
      end
      ENV["RATRACE_CONFIG"] = ARGV[2]
      puts Ratrace::Configuration.new.service.then { |text| [text, text.encoding] }
    RUBY
    lines = out.lines(chomp: true)
    assert_equal %w[7.0 nil [] nil 1], lines.first(5)
    assert_match(/is not plain YAML: .*flow node/, lines[5])
    assert_equal %w[größe UTF-8], lines.last(2)
  end

  # ---------------------------------------------------------------- what comes of it

  def test_a_recording_keeps_the_mode_asked_for_whatever_the_umask
    { nil => 0o600, 0o600 => 0o600, 0o640 => 0o640 }.each do |mode, expected|
      out = run_well(<<~RUBY, out_dir, mode.to_s)
        require "ratrace"
        File.umask(0o077)
        Ratrace.start(out_dir: ARGV[0], **(ARGV[1] == "" ? {} : { file_mode: Integer(ARGV[1]) }))
        puts Ratrace.stop
      RUBY
      assert_equal expected, File.stat(out.chomp).mode & 0o777
    end
  end

  def test_a_small_segment_size_makes_many_segments
    run_well(<<~RUBY, out_dir)
      require "ratrace"
      Ratrace.start(out_dir: ARGV[0], segment_size: 65_536, slot_size: 65_536, period: 0.01)
      names = 3000.times.map { |i| "m_\#{rand(10**60)}_\#{i}".to_sym }
      names.each { |name| define_method(name) { 1 } }
      names.each_slice(300) { |slice| slice.each { |name| send(name) }; Ratrace.flush }
      Ratrace.stop
    RUBY
    assert_operator segments.size, :>, 1
    assert_sound(out_dir)
  end

  def test_the_readme_has_the_table_of_settings
    assert_includes File.read(File.join(ROOT, "README.md")), Ratrace::SettingsTable.new.to_s,
                    "print it: ruby -Ilib -rratrace/settings_table -e 'puts Ratrace::SettingsTable.new'"
  end
end
