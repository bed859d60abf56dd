# frozen_string_literal: true

require "json"
require "test_helper"
require "support/processes"
require "support/recordings"

# A program under `ratrace record` does what it does without, to the byte and to the signal.
class FidelityTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  def program(code, name: "program.rb")
    File.join(out_dir, name).tap { |path| File.write(path, code) }
  end

  # The program plain, and recorded. A block talks to each while it runs.
  def both(path, *arguments, ruby: ["-w"], **options, &block)
    plain = run_process(RbConfig.ruby, *ruby, path, *arguments, **options, &block)
    recorded = run_recorded(*ruby_program(ruby, path), *arguments, **options, &block)
    [plain, recorded]
  end

  # Options of Ruby's own go through `ratrace record ruby ...`.
  def ruby_program(options, path)
    options.empty? ? [path] : [RbConfig.ruby, *options, path]
  end

  def run_recorded(*command, **options, &block)
    run_process(RbConfig.ruby, EXE, "record", "--out-dir", trace, *command, **options, &block)
  end

  def assert_same(code, *arguments, **options, &block)
    plain, recorded = both(program(code), *arguments, **options, &block)
    refute plain.timed_out
    assert_equal plain.visible, recorded.visible
    assert_recorded
    plain
  end

  # There is a recording, if need be of a program that could not finish it itself.
  def assert_recorded
    recover unless Dir[File.join(trace, "*.ratrace")].any?
    assert_sound(trace)
  end

  def trace
    File.join(out_dir, "trace")
  end

  def recover
    outcome = run_process(RbConfig.ruby, EXE, "recover", trace)
    assert_predicate outcome, :success?, outcome.err
  end

  # ---------------------------------------------------------------- output and status

  def test_output_and_errors_are_the_programs_own
    outcome = assert_same("$stdout.puts 'out'; $stderr.puts 'err'; puts [1, 2].sum; warn 'careful'")
    assert_equal "out\n3\n", outcome.out
    assert_equal "err\ncareful\n", outcome.err
  end

  { 0 => "exit", 3 => "exit 3", 255 => "exit(-1)", 1 => "exit(false)", 4 => "exit!(4)", 9 => "raise SystemExit.new(9)",
    2 => "Thread.new { exit 2 }.join", 5 => "begin; exit 5; ensure; 1 + 1; end" }.each do |status, code|
    define_method("test_the_status_of_#{code.gsub(/\W+/, "_")}_is_#{status}") do
      assert_equal status, assert_same(code).status.exitstatus
    end
  end

  def test_abort_says_its_last_words_and_fails
    outcome = assert_same("abort 'enough'")
    assert_equal [1, "enough\n"], [outcome.status.exitstatus, outcome.err]
  end

  def test_an_uncaught_exception_prints_the_same_lines
    outcome = assert_same(<<~RUBY)
      def inner = raise(ArgumentError, "odd\\nin two lines")
      def outer = inner
      begin
        outer
      rescue ArgumentError
        raise IOError, "because"
      end
    RUBY
    assert_equal 1, outcome.status.exitstatus
    assert_match(/because.*odd/m, outcome.err)
  end

  def test_a_syntax_error_prints_the_same_lines
    plain, recorded = both(program("def broken(\n1 +* 2\nend end"))
    assert_equal plain.visible, recorded.visible
  end

  def test_backtraces_hold_no_frame_of_ours
    outcome = assert_same("def f = caller + caller_locations.map(&:to_s)\nputs f, __method__.inspect\nputs caller.size")
    refute_match(/ratrace/, outcome.out.gsub(out_dir, ""))
  end

  def test_warnings_are_the_same
    outcome = assert_same("def f\n  unused = 1\n  [1] [0]\nend\nf\nwarn 'w', uplevel: 0\nputs $VERBOSE.inspect, $DEBUG")
    assert_match(/warning: /, outcome.err)
  end

  def test_without_dash_w_there_is_no_verbosity
    outcome = assert_same("puts $VERBOSE.inspect, $-w.inspect; x = 1", ruby: [])
    assert_equal "false\nfalse\n", outcome.out
  end

  # ---------------------------------------------------------------- at_exit

  def test_at_exit_handlers_run_in_the_same_order
    outcome = assert_same(<<~RUBY)
      at_exit { puts "first in, last out" }
      at_exit { puts "middle"; at_exit { puts "born late" } }
      END { puts "END" }
      at_exit { puts "status \#{$!.inspect}" }
      exit 6
    RUBY
    assert_equal 6, outcome.status.exitstatus
  end

  def test_exit_in_at_exit_changes_the_status
    assert_equal 8, assert_same("at_exit { exit 8 }\nexit 1").status.exitstatus
  end

  def test_an_exception_in_at_exit_is_told_the_same
    assert_same("at_exit { puts 'ran' }\nat_exit { raise 'late' }\nexit 2")
  end

  def test_calls_in_at_exit_are_recorded
    assert_same("def late = 1\nat_exit { late }", ruby: [])
    assert_equal({ "late" => 1 }, calls_in(trace, of: ["late"]))
  end

  # ---------------------------------------------------------------- signals

  %w[TERM INT HUP USR1 ABRT].each do |signal|
    define_method("test_SIG#{signal}_ends_it_the_same_way") do
      path = program("$stdout.sync = true; puts 'up'; sleep")
      plain, recorded = both(path) do |pid, _stdin, out|
        line = out.gets
        Process.kill(signal, pid)
        line
      end
      assert_equal Signal.list.fetch(signal), plain.status.termsig
      # where the signal met it is no business of ours
      assert_equal(*[plain, recorded].map { |outcome| outcome.visible.merge(err: outcome.err[/\w+$/]) })
      assert_recorded
    end
  end

  def test_sigkill_ends_it_the_same_way_and_leaves_what_can_be_recovered
    assert_same("def work = 1\n5.times { work }\n$stdout.sync = true; puts 'up'; sleep", ruby: []) do |pid, _stdin, out|
      line = out.gets
      Process.kill(:KILL, pid)
      line
    end
    assert_equal({ "work" => 5 }, calls_in(trace, of: ["work"]))
  end

  def test_a_trap_is_the_programs_own
    outcome = assert_same(<<~RUBY) do |pid, _in, out|
      trap(:TERM) { $stdout.syswrite("trapped\\n"); exit 11 } # `puts` would meet its own lock, if that one is still in it
      $stdout.sync = true
      puts "up"
      sleep
    RUBY
      line = out.gets
      Process.kill(:TERM, pid)
      line
    end
    assert_equal [11, "up\ntrapped\n"], [outcome.status.exitstatus, outcome.out]
  end

  def test_handlers_and_masks_of_signals_are_as_ruby_made_them
    assert_same(<<~RUBY)
      LIBC = 0b11 << 31 # 32 and 33: the C library catches them once there is a thread
      masks = File.readlines("/proc/self/status").grep(/^Sig(Blk|Ign|Cgt)/)
      puts masks.map { |line| line.split.last.to_i(16) & ~LIBC }
      %w[TERM INT HUP USR1 PROF CHLD PIPE].each { |name| p trap(name, "DEFAULT") }
    RUBY
  end

  # ---------------------------------------------------------------- what the program knows of itself

  def test_names_and_places_are_the_same
    assert_same(<<~RUBY, "one", "two words", "", "--period", "-x", "größe")
      p $0, $PROGRAM_NAME, __FILE__, __dir__, ARGV, ARGV.frozen?, ARGV.map(&:encoding), __LINE__, $*.equal?(ARGV)
      p __FILE__ == $0, Process.argv0, Dir.pwd, File.expand_path($0), require_relative("other") rescue p $!.class, $!.message
    RUBY
  end

  def test_the_environment_is_the_same
    outcome = assert_same(<<~RUBY, env: { "RUBYOPT" => "-W1", "RUBYLIB" => "/nowhere", "OWN" => "x" }, ruby: [])
      puts ENV.to_a.sort.map { |pair| pair.join("=") }, `env | grep -v ^_= | sort`
    RUBY
    refute_match(/RATRACE_BOOT/, outcome.out)
    assert_match(/^RUBYOPT=-W1$/, outcome.out)
  end

  def test_load_path_and_features_differ_by_ratraces_own_only
    path = program("puts $LOAD_PATH, '--', $LOADED_FEATURES, '--', ObjectSpace.each_object(Module).map(&:name).compact.sort")
    plain, recorded = both(path, ruby: []).map { |outcome| outcome.out.split("--\n").map(&:lines) }
    assert_equal plain[0], recorded[0] - ["#{LIB}\n"]
    added = recorded[1] - plain[1]
    assert_empty(added.reject { |line| line.start_with?("#{LIB}/ratrace") })
    assert_empty plain[1] - recorded[1]
    assert_empty((recorded[2] - plain[2]).grep_v(/\ARatrace\b/))
  end

  def test_constants_globals_and_main_are_untouched
    assert_same(<<~RUBY)
      p global_variables.sort, self, self.class, singleton_methods, instance_variables, local_variables
      p Object.constants.sort - [:Ratrace], Kernel.private_instance_methods(false).sort, Object.instance_methods(false)
      p Thread.list.size, ObjectSpace.count_objects.key?(:TOTAL), $,, $/, $;, $~, $!, $@, $?
      p Thread.current.name, Thread.main == Thread.current, GC.stress, Signal.list.size
    RUBY
  end

  def test_data_and_end_are_read
    assert_same("puts DATA.read, DATA.lineno, DATA.path == __FILE__\n__END__\nline one\nline two\n")
  end

  def test_magic_comments_hold
    assert_same("# -*- coding: EUC-JP; frozen_string_literal: true -*-\np __ENCODING__, 'x'.frozen?, ''.encoding")
  end

  def test_standard_input_is_passed_through
    outcome = assert_same("p $stdin.read.bytes.sum, $stdin.tty?, ARGF.class", input: "bytes \x00\xFF\n" * 10_000)
    refute_empty outcome.out
  end

  def test_no_descriptor_of_ours_reaches_a_program_it_starts
    assert_same("system('ls', '-l', '/proc/self/fd', out: IO::NULL); puts `ls /proc/self/fd | wc -l`")
  end

  # ---------------------------------------------------------------- ways to run

  def test_one_line_programs_run
    command = ["-e", "def f = 1", "-e", "f; p ARGV, $0, __FILE__", "a", "b"]
    plain = run_process(RbConfig.ruby, *command)
    recorded = run_recorded(RbConfig.ruby, *command)
    assert_equal plain.visible, recorded.visible
    assert_equal({ "f" => 1 }, calls_in(trace, of: ["f"]))
  end

  def test_switches_of_ruby_hold
    command = ["-n", "-l", "-a", "-e", "puts $F.reverse.join(' '); puts $_"]
    plain = run_process(RbConfig.ruby, *command, input: "a b\nc d\n")
    recorded = run_recorded(RbConfig.ruby, *command, input: "a b\nc d\n")
    assert_equal plain.visible, recorded.visible
    assert_equal "b a\na b\nd c\nc d\n", plain.out
  end

  def test_a_program_on_standard_input_runs
    plain = run_process(RbConfig.ruby, "-", "a", input: "p ARGV, $0, __FILE__")
    recorded = run_recorded(RbConfig.ruby, "-", "a", input: "p ARGV, $0, __FILE__")
    assert_equal plain.visible, recorded.visible
  end

  def test_a_command_found_in_path_runs
    path = program("#!/usr/bin/env ruby\np $0, __FILE__, ARGV", name: "a-command")
    File.chmod(0o755, path)
    env = { "PATH" => "#{out_dir}:#{ENV.fetch("PATH")}" }
    plain = run_process(path, "x", env: env)
    recorded = run_recorded("a-command", "x", env: env)
    assert_equal plain.visible, recorded.visible
  end

  def test_a_relative_program_keeps_its_relative_name
    program("p $0, __FILE__, __dir__\ndef f = 1\nf", name: "near.rb")
    plain = run_process(RbConfig.ruby, "near.rb", chdir: out_dir)
    recorded = run_recorded("near.rb", chdir: out_dir)
    assert_equal plain.visible, recorded.visible
  end

  def test_a_filter_names_a_relative_program_as_it_is_called
    program("require_relative 'far'\ndef near = far\nnear", name: "near.rb")
    program("def far = 1", name: "far.rb")
    ["near.rb", "./near.rb", File.join(File.realpath(out_dir), "near.rb")].each do |glob|
      FileUtils.rm_rf(trace)
      run_recorded("--include", glob, "near.rb", chdir: out_dir)
      assert_equal({ "near" => 1 }, calls_in(trace, of: %w[near far]), glob)
    end
  end

  def test_where_recording_is_disabled_the_program_runs_alone
    path = program("p $LOADED_FEATURES.grep(/ratrace/), ENV.key?('RATRACE_BOOT')")
    outcome = run_recorded(path, env: { "RATRACE_DISABLED" => "1" })
    assert_equal "[]\nfalse\n", outcome.out
    refute_path_exists trace
  end

  def test_exec_in_the_program_becomes_the_other_program
    outcome = assert_same("def f = 1\nf\nexec('sh', '-c', 'echo $0; exit 12', 'other')")
    assert_equal [12, "other\n"], [outcome.status.exitstatus, outcome.out]
  end

  def test_children_the_program_spawns_are_not_recorded
    assert_same(<<~RUBY)
      puts `\#{RbConfig.ruby rescue "ruby"} -e 'p $LOADED_FEATURES.grep(/ratrace/)'`
    RUBY
  end

  # ---------------------------------------------------------------- output that goes wrong

  def test_large_output_arrives_whole
    outcome = assert_same("def line(i) = \"\#{i}: \" + 'x' * 80\n20_000.times { |i| puts line(i) }")
    assert_equal 20_000, outcome.out.lines.size
  end

  def test_a_closed_pipe_ends_it_the_same_way
    outcome = assert_same("100_000.times { puts 'y' * 100 }") do |_pid, _stdin, out|
      out.readline
      out.close
      "closed"
    end
    refute_predicate outcome.status, :success?
  end

  def test_closed_standard_streams_do_no_harm
    command = "exec \"$@\" >&- 2>&-"
    path = program("def f = 1\nf\nFile.write(ARGV.first, 'done')\nexit 13")
    plain, recorded = [[RbConfig.ruby, path], [RbConfig.ruby, EXE, "record", "--out-dir", trace, path]].map do |run|
      outcome = run_process("sh", "-c", command, "sh", *run, mark = File.join(out_dir, "mark"))
      [outcome.visible, File.read(mark)]
    end
    assert_equal plain, recorded
    assert_sound(trace)
  end

  # ---------------------------------------------------------------- when it is asked to talk

  def test_asked_to_debug_it_tells_its_life_on_stderr_and_only_there
    path = program("def f = 1\nf\nputs 'out'")
    plain, recorded = both(path, env: { "RATRACE_DEBUG" => "1" }, ruby: [])
    assert_empty plain.err
    assert_equal plain.out, recorded.out
    refute_empty recorded.err
    assert(recorded.err.lines.all? { |line| line.start_with?("ratrace: ") }, recorded.err)
    assert_match(/published .*\.ratrace$/, recorded.err)
  end

  # ---------------------------------------------------------------- when ratrace cannot record

  def test_a_directory_that_cannot_be_made_keeps_no_program_from_running
    path = program("puts 'ran'; exit 14")
    outcome = run_process(RbConfig.ruby, EXE, "record", "--out-dir", "/proc/nothing", path)
    assert_equal [14, "ran\n"], [outcome.status.exitstatus, outcome.out]
    assert_match(%r{\Aratrace: .*/proc/nothing.*\n\z}, outcome.err)
  end

  def test_a_disk_that_takes_no_more_changes_nothing_the_program_can_see
    assert_same(<<~RUBY)
      def f = 1
      trap("XFSZ", "IGNORE")
      Process.setrlimit(:FSIZE, 2048)
      20.times { 1000.times { f } and Ratrace.flush rescue 0 } if defined?(Ratrace)
      puts "done"
      exit 15
    RUBY
  end

  # A new thread's first call asks Ruby for the thread's name, with what Ruby had when ratrace was loaded.
  SLOW_NAMES = <<~RUBY
    ASKED, ANSWER = Queue.new, Queue.new
    class UnboundMethod
      alias_method :bind_and_call, :bind_call
      def bind_call(object)
        ASKED << self
        ANSWER.pop unless object.status == "aborting"
        bind_and_call(object)
      end
    end
    require "ratrace"
    def leaf = 5
  RUBY

  # What was to be recorded may be gone when the answer comes.
  def test_a_recording_may_stop_while_a_new_thread_is_asked_for_its_name
    out = run_well(SLOW_NAMES + <<~RUBY, out_dir)
      2.times do |restarts|
        Ratrace.start(out_dir: ARGV.first)
        thread = Thread.new { leaf }
        ASKED.pop
        Ratrace.stop
        Ratrace.start(out_dir: ARGV.first) if restarts == 1
        2.times { ANSWER << true } # the new recording asks, too
        p thread.value
        Ratrace.stop
        ANSWER.clear
      end
    RUBY
    assert_equal "5\n" * 2, out
  end

  def test_a_thread_may_be_killed_while_it_is_asked_for_its_name
    out = run_well(SLOW_NAMES + <<~RUBY, out_dir)
      Ratrace.start(out_dir: ARGV.first)
      thread = Thread.new { leaf && sleep }
      ASKED.pop
      p thread.kill.join(10)&.status
      Ratrace.stop
    RUBY
    assert_equal "false\n", out
    assert_sound(out_dir)
  end

  def test_an_exception_for_a_thread_that_is_asked_for_its_name_reaches_it
    out = run_well(SLOW_NAMES + <<~RUBY, out_dir)
      Ratrace.start(out_dir: ARGV.first)
      thread = Thread.new do
        leaf
      rescue IOError => e
        e.message
      end
      ASKED.pop
      2.times { ANSWER << true } # it is asked again, at its next event
      thread.raise(IOError, "late")
      p thread.value
      Ratrace.stop
    RUBY
    assert_equal "\"late\"\n", out
    assert_sound(out_dir)
  end

  def test_frozen_threads_and_fibers_are_recorded_and_may_be_collected
    out = run_well(<<~RUBY, out_dir)
      require "ratrace"
      def leaf = 5
      Ratrace.start(out_dir: ARGV.first)
      50.times do
        Thread.new { leaf }.freeze.join
        Fiber.new { Fiber.current.freeze && leaf }.resume
      end
      GC.start
      puts [Thread, Fiber].map { |kind| ObjectSpace.each_object(kind).count < 20 }.inspect
      Ratrace.stop
    RUBY
    assert_equal "[true, true]\n", out
    assert_equal 100, calls_in(out_dir, of: %w[leaf]).fetch("leaf")
    assert_sound(out_dir)
  end

  def test_a_host_that_has_no_methods_of_its_own_is_recorded
    out = run_well(<<~RUBY, out_dir)
      require "ratrace"
      def leaf = 5
      configuration = Ratrace::Configuration.new({ out_dir: ARGV.first }).to_native
      [[Thread, %i[name inspect to_s alive?]], [Module, %i[name to_s inspect]], [UnboundMethod, %i[bind_call bind]],
       [Fiber, %i[alive?]], [Symbol, %i[to_s name]], [Kernel, %i[raise inspect frozen?]]].each do |owner, names|
        names.each { |name| owner.undef_method(name) if owner.method_defined?(name) || owner.private_method_defined?(name) }
      end
      Ratrace::Native.start(configuration)
      $stdout.puts Thread.new { [leaf, Fiber.new { leaf }.resume].sum }.value
      Ratrace::Native.stop
    RUBY
    assert_equal "10\n", out
    assert_equal 2, calls_in(out_dir, of: %w[leaf]).fetch("leaf")
  end
end
