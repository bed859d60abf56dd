# frozen_string_literal: true

require "test_helper"
require "support/processes"
require "support/recordings"

# Processes that die in other ways than by a signal from outside: all that was recorded is there after a recovery, once.
class CrashTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  # Four threads that have recorded all there is to record; half of it is in a file, half in memory.
  HOST = <<~RUBY
    require "fiddle"
    require "ratrace"
    module Work
      def self.tick = 1
    end
    Ratrace.start(out_dir: ARGV.fetch(0), period: 3600)
    2.times do |round|
      4.times.map { Thread.new { 1000.times { Work.tick } } }.each(&:join)
      Ratrace.flush if round.zero?
    end
  RUBY

  ENDS = {
    "a_segfault_in_another_extension" => "Fiddle::Pointer.new(0x10)[0]",
    "abort_called_in_c" => "Fiddle::Function.new(Fiddle::Handle::DEFAULT['abort'], [], Fiddle::TYPE_VOID).call",
    "exit_called_in_c" => "Fiddle::Function.new(Fiddle::Handle::DEFAULT['_exit'], [Fiddle::TYPE_INT], Fiddle::TYPE_VOID).call(3)",
    "exit_without_handlers" => "exit!(3)",
    "another_program" => "exec('true')",
    "a_signal_while_a_thread_flushes" => "Thread.new { loop { Ratrace.flush } }; sleep 0.05; Process.kill(:KILL, Process.pid)",
    "a_fatal_error_in_ruby" => "Thread.main.wakeup; Process.kill(:SEGV, Process.pid); sleep"
  }.freeze

  ENDS.each do |name, code|
    define_method("test_#{name}") do
      outcome = run_process(RbConfig.ruby, "-I#{LIB}", "-e", HOST + code, out_dir, env: { "RUBY_CRASH_REPORT" => "/dev/null" })
      refute outcome.timed_out
      recovered = run_process(RbConfig.ruby, EXE, "recover", out_dir)
      assert recovered.success?, recovered.err

      assert_empty Dir[File.join(out_dir, "*.part")]
      assert_empty Dir.children(live_dir)
      assert_equal({ "tick" => 8000 }, calls_in(out_dir, of: ["tick"]))
      assert_sound(out_dir)
      again = run_process(RbConfig.ruby, EXE, "recover", out_dir)
      assert again.success?, again.err
      assert_equal({ "tick" => 8000 }, calls_in(out_dir, of: ["tick"]))
    end
  end
end
