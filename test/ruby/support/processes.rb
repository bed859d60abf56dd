# frozen_string_literal: true

require "open3"
require "rbconfig"
require_relative "recordings"

# Ruby programs in processes of their own: fed, watched, and ended with their whole group when they hang.
module Processes
  EXE = File.join(ROOT, "exe/ratrace")
  LIB = File.join(ROOT, "lib")

  # Set for this process's own sake, perhaps by a test that runs at the same time.
  NEUTRAL = %w[RUBYOPT RATRACE_OUT_DIR RATRACE_DISABLED RATRACE_DEBUG].to_h { |name| [name, nil] }.freeze

  # What a program did.
  Outcome = Struct.new(:out, :err, :status, :timed_out, keyword_init: true) do
    def success?
      !timed_out && status.success?
    end

    # What a parent process can see of it.
    def visible
      { out: out, err: err, exit: status.exitstatus, signal: status.termsig, timed_out: timed_out }
    end
  end

  # Live files of the programs a test runs, apart from those of anything else on this machine.
  def live_dir
    @live_dir ||= Dir.mktmpdir("ratrace-live", File.writable?("/dev/shm") ? "/dev/shm" : nil)
  end

  def teardown
    FileUtils.rm_rf(@live_dir) if @live_dir
    super
  end

  # A block may talk to the running program: it gets its pid, stdin, and stdout up to what it reads itself. When the block
  # fails, the program ends. What programs print is UTF-8, whatever the locale.
  def run_process(*command, env: {}, input: "", chdir: ROOT, timeout: Recordings::PATIENCE, &block)
    Open3.popen3(NEUTRAL.merge("RATRACE_LIVE_DIR" => live_dir, **env), *command, pgroup: true, chdir: chdir) do |stdin, out, err, process|
      [out, err].each { |io| io.set_encoding(Encoding::UTF_8) }
      read_early = block_given? ? talk(process.pid, stdin, out, &block) : +""
      feed(stdin, input)
      readers = [out, err].map { |io| Thread.new { io.closed? ? "" : io.read } }
      timed_out = process.join(timeout).nil?
      end_group(process.pid) if timed_out
      texts = readers.map(&:value)
      Outcome.new(out: read_early + texts[0], err: texts[1], status: process.value, timed_out: timed_out)
    end
  end

  # Code that may `require "ratrace"`. A warning, a hang or a failure fails the test.
  def run_code(code, *arguments, env: {}, **options, &block)
    command = [RbConfig.ruby, "-w", "-W:no-experimental", "-I#{LIB}", "-e", code, *arguments]
    outcome = run_process(*command, env: env, **options, &block)
    refute outcome.timed_out, "hung:\n#{outcome.err}"
    refute_match(/warning: /, outcome.err)
    outcome
  end

  def run_well(code, *arguments, **options)
    outcome = run_code(code, *arguments, **options)
    assert outcome.status.success?, "#{outcome.status}\n#{outcome.err}#{outcome.out}"
    assert_empty outcome.err
    outcome.out
  end

  private

  # Open3 would wait for a program that nobody talks to any more.
  def talk(pid, *streams)
    done = false
    (+"" << yield(pid, *streams).to_s).tap { done = true }
  ensure
    end_group(pid) unless done
  end

  def feed(stdin, input)
    stdin.write(input) unless stdin.closed?
    stdin.close unless stdin.closed?
  rescue Errno::EPIPE
    nil # it did not want to hear all of it
  end

  def end_group(pid)
    Process.kill(:KILL, -pid)
  rescue Errno::ESRCH
    nil
  end
end
