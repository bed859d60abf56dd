# frozen_string_literal: true

require "test_helper"
require "support/processes"
require "support/recordings"

# RUBYOPT=-rratrace/auto: programs that know nothing of ratrace are recorded, and nothing about them changes.
class AutoTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  AUTO = "-w -I#{LIB} -rratrace/auto"
  PROGRAM = <<~RUBY
    require "json"
    def work(n) = n.zero? ? 0 : work(n - 1)
    at_exit { puts "last" }
    p $0, __FILE__, ARGV, JSON.parse("[1]"), work(3)
    warn "heard"
    exit 7
  RUBY

  def trace_dir
    File.join(out_dir, "trace")
  end

  def app_dir
    File.join(out_dir, "app").tap { |dir| FileUtils.mkdir_p(dir) }
  end

  def app(name, text)
    path = File.join(app_dir, name)
    FileUtils.mkdir_p(File.dirname(path))
    File.write(path, text)
    path
  end

  def run_auto(*command, env: {}, chdir: app_dir, **options)
    env = { "RUBYOPT" => AUTO, "RATRACE_OUT_DIR" => trace_dir, **env }
    run_process(*command, env: env, chdir: chdir, **options).tap { |outcome| refute outcome.timed_out, outcome.err }
  end

  # The path of this Ruby's own tool; where there are several Rubies it may be bundle3.3.
  def tool(name)
    path = File.join(RbConfig::CONFIG["bindir"], RbConfig::CONFIG["ruby_install_name"].sub("ruby", name))
    File.exist?(path) ? path : File.join(RbConfig::CONFIG["bindir"], name)
  end

  # The same tool by its usual name.
  def plain_tool(name)
    File.join(app_dir, name).tap { |path| File.symlink(tool(name), path) unless File.symlink?(path) }
  end

  def recorded
    segments(trace_dir).empty? ? {} : calls_in(trace_dir)
  end

  # ---------------------------------------------------------------- what is recorded

  def test_a_programs_own_methods_are_recorded_and_it_behaves_as_without
    app("app.rb", PROGRAM)
    plain = run_process(RbConfig.ruby, "-w", "app.rb", "a", "--b", chdir: app_dir)
    outcome = run_auto(RbConfig.ruby, "app.rb", "a", "--b")

    assert_equal plain.visible, outcome.visible
    assert_equal({ "work" => 4 }, recorded)
    assert_sound(trace_dir)
  end

  def test_files_below_the_root_are_its_own_and_gems_are_not
    app("lib/own.rb", "module Own; def self.call = Stranger.call; end")
    app("vendor/bundle/stranger.rb", "module Stranger; def self.call = 1; end")
    app("main.rb", 'require_relative "lib/own"; require_relative "vendor/bundle/stranger"; Own.call')
    run_auto(RbConfig.ruby, "main.rb")

    assert_equal({ "call" => 1 }, recorded)
  end

  def test_methods_made_of_a_text_that_names_no_file_are_nobodys
    app("vendor/bundle/stranger.rb", 'module Stranger; class_eval("def self.made = 1"); end')
    app("main.rb", 'require_relative "vendor/bundle/stranger"; def own = Stranger.made; own')
    run_auto(RbConfig.ruby, "main.rb")

    assert_equal({ "own" => 1 }, recorded)
  end

  def test_a_script_that_lies_elsewhere_is_its_own_too
    script = app("far/main.rb", "def near = 1\nnear\n")
    Dir.mktmpdir { |dir| run_auto(RbConfig.ruby, script, chdir: dir) }

    assert_equal({ "near" => 1 }, recorded)
  end

  def test_one_line_programs_are_recorded
    run_auto(RbConfig.ruby, "-e", "def typed = 1\ntyped")
    assert_equal({ "typed" => 1 }, recorded)
  end

  def test_irb_is_recorded
    outcome = run_auto(RbConfig.ruby, tool("irb"), "-f", "--noprompt", "--nosingleline", input: "def typed = 1\ntyped\n")
    assert outcome.success?, outcome.err
    assert_equal 1, recorded["typed"]
  end

  def test_rake_is_recorded
    app("Rakefile", "def work = 1\ntask(:default) { work }\n")
    outcome = run_auto("rake")
    assert outcome.success?, outcome.err
    assert_equal({ "work" => 1 }, recorded)
  end

  def test_an_operators_choice_of_files_beats_the_default
    app("own.rb", "def own = 1\nrequire_relative \"other\"\nown + other\n")
    app("other.rb", "def other = 1\n")
    run_auto(RbConfig.ruby, "own.rb", env: { "RATRACE_INCLUDE" => "#{app_dir}/other.rb" })

    assert_equal({ "other" => 1 }, recorded)
  end

  def test_all_calls_of_the_process_are_recorded_on_request
    run_auto(RbConfig.ruby, "-rset", "-e", "Set.new([1])", env: { "RATRACE_TRACE" => "all" })
    assert(events_in(trace_dir).any? { |event| event.values_at("owner", "method") == %w[Set initialize] })
  end

  def test_forked_children_are_recorded_without_a_word
    run_auto(RbConfig.ruby, "-e", <<~RUBY)
      def work = 1
      work
      3.times { Process.wait(fork { work; exit!(0) }) }
      Process.wait(fork { work; Process.daemon(true, true); work; exit!(0) })
    RUBY
    run_process(RbConfig.ruby, EXE, "recover", trace_dir)
    within { sleep 0.01 until account_of(trace_dir)[:sessions].size >= 6 }
    assert_operator recorded["work"], :>=, 5
  end

  def test_programs_it_starts_are_recorded_too
    run_auto(RbConfig.ruby, "-e", 'system(RbConfig.ruby, "-e", "def inner = 1\ninner") or abort')
    assert_equal 1, recorded["inner"]
    assert_equal 2, account_of(trace_dir)[:sessions].size
  end

  # ---------------------------------------------------------------- what is not

  def test_rubys_own_tools_and_ratrace_itself_are_not_recorded
    tools = %w[gem bundle rdoc].flat_map { |name| [tool(name), plain_tool(name)] }
    [*tools, EXE].each do |path|
      plain = run_process(RbConfig.ruby, "-w", path, "--version", chdir: app_dir)
      outcome = run_auto(RbConfig.ruby, path, "--version")
      assert outcome.success?, outcome.err
      assert_equal plain.visible, outcome.visible
    end
    refute_path_exists trace_dir
  end

  def test_bundle_exec_is_recorded_as_the_command_it_runs
    app("Gemfile", "")
    app("tool", "#!#{RbConfig.ruby}\ndef work = 1\nwork\n")
    File.chmod(0o755, File.join(app_dir, "tool"))
    [tool("bundle"), plain_tool("bundle")].each do |bundle|
      outcome = run_auto(RbConfig.ruby, bundle, "exec", "./tool")

      assert outcome.success?, outcome.err
      assert_equal 1, recorded["work"]
      assert_includes Ratrace::Recording.new(trace_dir).sessions.map { |session| session[:service] }, "tool"
      FileUtils.rm_rf(trace_dir)
    end
  end

  def test_where_it_is_disabled_nothing_is_loaded
    outcome = run_auto(RbConfig.ruby, "-e", "p defined?(Ratrace)", env: { "RATRACE_DISABLED" => "1" })
    assert_equal "nil\n", outcome.out
    outcome = run_auto(RbConfig.ruby, "-e", "p Ratrace.recording?", env: { "RATRACE_ENABLED" => "0" })
    assert_equal ["false\n", ""], [outcome.out, outcome.err]
    refute_path_exists trace_dir
  end

  def test_ratrace_record_beats_it
    script = app("app.rb", "def work = 1\nwork\n")
    outcome = run_auto(RbConfig.ruby, EXE, "record", "--out-dir", trace_dir, script)

    assert_equal ["", 0], [outcome.err, outcome.status.exitstatus]
    assert_equal 1, account_of(trace_dir)[:sessions].size
  end

  # ---------------------------------------------------------------- what goes wrong

  WRONG = {
    { "RATRACE_PERIOD" => "soon" } => /period: "soon" of RATRACE_PERIOD is not allowed; use seconds between/,
    { "RATRACE_PERIOD" => "soon", "RATRACE_SLOT_SIZE" => "1" } => /period: .*; slot_size: /,
    { "RATRACE_CONFIG" => "/nothing/here.yml" } => %r{/nothing/here.yml of RATRACE_CONFIG cannot be read},
    { "RATRACE_CONFIG" => "/dev/zero" } => %r{/dev/zero of RATRACE_CONFIG cannot be read},
    { "RATRACE_OUT_DIR" => "/proc/nothing" } => %r{cannot write to the output directory /proc/nothing},
    { "RATRACE_EXPORT_TOKEN_FILE" => "/nothing" } => %r{/nothing of export_token_file cannot be read}
  }.freeze

  WRONG.each do |env, complaint|
    define_method("test_a_program_runs_unrecorded_with_#{env.keys.join("_and_")}_#{env.values.first}") do
      app("app.rb", PROGRAM)
      plain = run_process(RbConfig.ruby, "-w", "app.rb", chdir: app_dir)
      outcome = run_auto(RbConfig.ruby, "app.rb", env: env)

      assert_equal [plain.out, plain.status.exitstatus], [outcome.out, outcome.status.exitstatus]
      lines = outcome.err.lines - plain.err.lines
      assert_equal 1, lines.size, outcome.err
      assert_match(/\Aratrace: not recording: #{complaint}/, lines.first)
    end
  end

  def test_a_program_runs_without_an_extension_for_its_ruby
    lib = File.join(out_dir, "lib")
    FileUtils.cp_r(LIB, lib)
    File.write(File.join(lib, "ratrace/ratrace.so"), "no ELF")
    outcome = run_auto(RbConfig.ruby, "-e", "puts 1", env: { "RUBYOPT" => "-w -I#{lib} -rratrace/auto" })

    assert_equal ["1\n", 0, 1], [outcome.out, outcome.status.exitstatus, outcome.err.lines.size]
    assert_match(/\Aratrace: not recording: .*ratrace\.so/, outcome.err)
  end

  def test_a_program_whose_stderr_is_closed_runs_too
    outcome = run_auto("bash", "-c", "#{RbConfig.ruby} -e 'puts 1' 2>&-", env: { "RATRACE_PERIOD" => "x" })
    assert_equal ["1\n", 0], [outcome.out, outcome.status.exitstatus]
  end
end
