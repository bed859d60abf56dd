# frozen_string_literal: true

require "fileutils"
require "ratrace/cli"
require "ratrace/recording"
require "stringio"
require "test_helper"
require "tmpdir"

# Recordings for the tests of what reads them: made once a run by `ratrace record`, read by the command in this process.
module RecordingHelper
  EXE = File.join(ROOT, "exe/ratrace")
  MEMORY = File.directory?("/dev/shm") ? "/dev/shm" : Dir.tmpdir # what survives a kill lies on tmpfs

  SHOP = <<~RUBY
    class Shop
      def self.open = new.sell(3)
      def sell(n) = n < 1 ? pay : sell(n - 1)
      def pay; end
      alias settle pay
      define_method("caf\\xE9".dup.force_encoding("ISO-8859-1").to_sym) { }
      define_method(:"two\\nlines") { }
    end
    Shop.open
    Shop.new.settle
    Shop.new.send("caf\\xE9".dup.force_encoding("ISO-8859-1").to_sym)
    Shop.new.send(:"two\\nlines")
    Thread.new { Thread.current.name = "till"; Shop.new.pay; Fiber.new { Shop.new.pay }.resume }.join
  RUBY

  # Flushed, then killed: what was recorded since lies in memory only.
  KILLED = <<~RUBY
    def step; end
    step
    Ratrace.flush
    step
    Process.kill(:KILL, Process.pid)
  RUBY

  class << self
    # A directory with the recording of this program; the same each time.
    def of(program)
      @made ||= {}
      @made[program] ||= record(program)
    end

    # A new one.
    def record(program)
      dir = Dir.mktmpdir("ratrace-test", MEMORY)
      Minitest.after_run { FileUtils.rm_rf(dir) }
      script = File.join(dir, "program.rb")
      File.write(script, program)
      out = File.join(dir, "out")
      text, status = Open3.capture2e({ "RATRACE_LIVE_DIR" => dir }, RbConfig.ruby, "-w", EXE, "record",
                                     "--out-dir", out, script)
      raise "the program failed:\n#{text}" unless status.success? || status.signaled?

      out
    end
  end

  # Runs the command in this process: output, errors, exit status.
  def ratrace(*arguments, env: {})
    out = StringIO.new
    err = StringIO.new
    status = Ratrace::CLI.new(out: out, err: err, env: env).run(arguments)
    [out.string, err.string, status]
  end

  # ... and expects success.
  def ratrace!(*arguments, env: {})
    out, err, status = ratrace(*arguments, env: env)
    assert_equal ["", 0], [err, status]
    out
  end

  # A copy of the only segment of a recording, for damage.
  def copy_of(dir)
    segment, = Dir.children(dir)
    copy = Dir.mktmpdir("ratrace-test")
    Minitest.after_run { FileUtils.rm_rf(copy) }
    File.join(copy, segment).tap { |path| FileUtils.cp(File.join(dir, segment), path) }
  end
end
