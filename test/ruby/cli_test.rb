# frozen_string_literal: true

require_relative "recording_helper"

class CLITest < Minitest::Test
  include RecordingHelper

  def test_help_lists_the_commands
    out = ratrace!("--help")

    Ratrace::CLI::COMMANDS.each_key { |name| assert_match(/^  #{name} +\w/, out) }
  end

  Ratrace::CLI::COMMANDS.each_key do |name|
    define_method("test_#{name}_has_help") do
      assert_match(/\AUsage: ratrace #{name} /, ratrace!(name, "--help"))
      assert_equal ratrace!(name, "--help"), ratrace!("help", name)
    end
  end

  def test_version
    assert_equal "ratrace #{Ratrace::VERSION}\n", ratrace!("--version")
  end

  def test_an_unknown_command_is_answered_with_the_likely_one
    assert_equal ["", "ratrace: unknown command repport, did you mean report?; see `ratrace --help`\n", 2],
                 ratrace("repport")
  end

  def test_mistakes_on_the_command_line_end_with_2
    [[], ["--nonsense"], ["report"], ["report", "--nonsense"], ["report", "--sort", "luck", "x"],
     ["report", "--limit", "-1", "x"], ["report", "--min-share", "200", "x"], ["print"], ["recover"], ["record"],
     ["record", "--period", "soon", "x"], ["record", "--slot-size", "12Q", "x"],
     ["help", "nonsense"]].each do |arguments|
      out, err, status = ratrace(*arguments, env: { "RATRACE_OUT_DIR" => "/nowhere" })

      assert_equal ["", 2, 1], [out, status, err.lines.size], arguments.inspect
      assert_match(/\Aratrace: .+\n\z/, err)
    end
  end

  READERS = %w[report print verify].freeze

  def test_without_an_argument_the_recorders_own_directory_is_read
    shop = RecordingHelper.of(SHOP)
    READERS.each do |name|
      assert_equal ratrace!(name, shop), ratrace!(name, env: { "RATRACE_OUT_DIR" => shop })
    end
  end

  def test_without_an_argument_and_a_variable_the_default_directory_is_read
    in_program_dir("") do |dir|
      FileUtils.cp_r(RecordingHelper.of(SHOP), File.join(dir, "ratrace.out"))
      READERS.each do |name|
        out, err, status = Open3.capture3({ "RATRACE_OUT_DIR" => nil }, RbConfig.ruby, EXE, name, chdir: dir)

        assert_equal [ratrace!(name, RecordingHelper.of(SHOP)), "", true], [out, err, status.success?]
      end
    end
  end

  def test_without_an_argument_and_a_recording_the_directory_is_named
    Dir.mktmpdir do |empty|
      READERS.product([empty, "/nowhere"]).each do |name, dir|
        assert_equal ["", "ratrace: #{name}: no file or directory given, and #{dir}: no recording in it; make one with " \
                          "`ratrace record`, or finish a killed process's with `ratrace recover`; see `ratrace #{name} " \
                          "--help`\n", 2],
                     ratrace(name, env: { "RATRACE_OUT_DIR" => dir })
      end
    end
  end

  def test_nothing_is_assumed_where_files_are_changed_or_sent
    shop = RecordingHelper.of(SHOP)
    [["recover"], ["ship", "--to", "http://127.0.0.1:1/", "--once"], ["serve"]].each do |arguments|
      out, err, status = ratrace(*arguments, env: { "RATRACE_OUT_DIR" => shop })

      assert_equal ["", 2], [out, status]
      assert_match(/no directory given|give one directory/, err)
    end
  end

  def test_a_key_that_is_none_is_answered_with_all_there_are
    { "report" => "self, total, calls, mean, max, name", "top" => "self, total, calls" }.each do |name, keys|
      %w[luck m].push("").each do |key|
        assert_equal ["", "ratrace: #{name}: invalid argument: --sort #{key} (one of #{keys}); see `ratrace #{name} " \
                          "--help`\n", 2], ratrace(name, "--sort", key, "x")
      end
    end
  end

  def test_the_beginning_of_a_key_will_do
    shop = RecordingHelper.of(SHOP)

    assert_equal ratrace!("report", "--sort", "calls", shop), ratrace!("report", "--sort", "c", shop)
  end

  def test_a_reader_that_has_seen_enough_is_no_failure
    shop = RecordingHelper.of(SHOP)
    out, err, status = Open3.capture3("bash", "-c", 'set -o pipefail; "$0" -w "$@" | head -n 1', RbConfig.ruby, EXE,
                                      "print", shop)

    assert_equal ["", true, 1], [err, status.success?, out.lines.size]
  end

  # ---------------------------------------------------------------- record

  PROGRAM = <<~RUBY
    at_exit { warn "last" }
    at_exit { puts "at exit" }
    p $0, ARGV, __FILE__, ENV.keys.grep(/RATRACE/), $VERBOSE
    exit 7
  RUBY

  def test_a_recorded_program_behaves_as_a_plain_one
    in_program_dir(PROGRAM) do |dir|
      plain = Open3.capture3({ "RATRACE_LIVE_DIR" => dir }, RbConfig.ruby, "program.rb", "a", "--b", chdir: dir)
      recorded = record("program.rb", "a", "--b", dir: dir)

      assert_equal plain.first(2), recorded.first(2)
      assert_equal [7, 7], [plain, recorded].map { |run| run.last.exitstatus }
      assert_match(/\.ratrace\z/, Dir.children(File.join(dir, "out")).first)
    end
  end

  def test_two_dashes_may_stand_before_the_programs_arguments
    in_program_dir("p ARGV") do |dir|
      assert_equal "[\"a\", \"--\", \"b\"]\n", record("program.rb", "--", "a", "--", "b", dir: dir).first
    end
  end

  def test_a_program_is_ended_by_its_signal
    in_program_dir("Process.kill(:TERM, Process.pid); sleep") do |dir|
      assert_equal Signal.list["TERM"], record("program.rb", dir: dir).last.termsig
    end
  end

  def test_a_script_needs_no_suffix_and_a_command_is_found_in_path
    in_program_dir("#!/usr/bin/env ruby\nputs $0", name: "tool") do |dir|
      File.chmod(0o755, File.join(dir, "tool"))

      assert_equal "tool\n", record("tool", dir: dir).first
      Dir.mktmpdir do |elsewhere|
        out, = record("tool", dir: elsewhere, env: { "PATH" => "#{dir}:#{ENV["PATH"]}" })

        assert_equal "#{dir}/tool\n", out
      end
    end
  end

  def test_ruby_itself_takes_its_own_arguments
    in_program_dir("") do |dir|
      assert_equal "[\"-e\", [\"x\"]]\n", record("ruby", "-e", "p [$0, ARGV]", "x", dir: dir).first
    end
  end

  def test_disabled_means_only_run
    in_program_dir("p defined?(Ratrace)") do |dir|
      assert_equal "nil\n", record("program.rb", dir: dir, env: { "RATRACE_DISABLED" => "1" }).first
      refute_path_exists File.join(dir, "out")
    end
  end

  def test_the_directory_comes_from_the_environment_too
    in_program_dir("") do |dir|
      elsewhere = File.join(dir, "elsewhere")
      run = Open3.capture3({ "RATRACE_OUT_DIR" => elsewhere, "RATRACE_LIVE_DIR" => dir }, RbConfig.ruby, EXE, "record",
                           File.join(dir, "program.rb"))

      assert_equal ["", ""], run.first(2)
      assert_equal 1, Dir.children(elsewhere).size
    end
  end

  def test_what_is_no_ruby_program_is_refused_with_a_remedy
    Dir.mktmpdir do |dir|
      shell = File.join(dir, "shell")
      File.write(shell, "#!/bin/sh\nexec ruby app.rb\n")
      env = { "PATH" => ENV["PATH"] }
      { "ls" => /compiled program/, shell => %r{runs under /bin/sh}, dir => /directory/,
        "no-such-thing" => /no such script/ }.each do |name, complaint|
        out, err, status = ratrace("record", name, env: env)

        assert_equal ["", 1, 1], [out, status, err.lines.size]
        assert_match(/\Aratrace: record: #{Regexp.escape(name)}: .*#{complaint}.*; give the /, err)
      end
    end
  end

  def test_options_are_checked_before_the_program_runs
    in_program_dir("puts 1") do |dir|
      out, err, status = record("program.rb", dir: dir, options: ["--slot-size", "10"])

      assert_equal ["", 2], [out, status.exitstatus]
      assert_match(/\Aratrace: record: slot_size: 10 is not allowed; use bytes between/, err)
    end
  end

  def test_a_wrong_setting_is_told_whatever_the_program_is
    in_program_dir("puts 1") do |dir|
      out, err, status = record("missing.rb", dir: dir, options: ["--period", "-3"])

      assert_equal ["", 2], [out, status.exitstatus]
      assert_match(/\Aratrace: record: period: -3.0 is not allowed; use /, err)
    end
  end

  def test_sizes_take_suffixes
    in_program_dir("") do |dir|
      assert_equal ["", ""], record("program.rb", dir: dir, options: ["--slot-size", "64K"]).first(2)
      assert_equal 65_536, Ratrace::Recording.new(File.join(dir, "out")).sessions.first[:slot_bytes]
    end
  end

  private

  def in_program_dir(program, name: "program.rb")
    Dir.mktmpdir("ratrace-test", MEMORY) do |dir|
      File.write(File.join(dir, name), program)
      yield dir
    end
  end

  def record(*arguments, dir:, options: [], env: {})
    Open3.capture3({ "RATRACE_LIVE_DIR" => dir, **env }, RbConfig.ruby, EXE, "record", "--out-dir", "out", *options,
                   *arguments, chdir: dir)
  end
end
