# frozen_string_literal: true

require "open3"
require "rbconfig"
require "timeout"

module Oracle
  # Runs one Ruby program in a process of its own and keeps what it printed and how it ended.
  class ProgramRun
    TIMEOUT = 150
    # Small stacks, so that an overflow is soon reached and the oracle, which looks at all frames, is soon done.
    SMALL_STACK = { "RUBY_THREAD_VM_STACK_SIZE" => (128 * 1024).to_s }.freeze

    # A sanitizer is for our extension; without that it would only cost time.
    BARE = { "RUBYOPT" => nil, "LD_PRELOAD" => nil }.freeze

    attr_reader :out, :err, :status

    def initialize(*arguments, env: {}, timeout: TIMEOUT)
      command = [{ **BARE, **SMALL_STACK, **env }, RbConfig.ruby, *arguments]
      Open3.popen3(*command, pgroup: true) do |input, out, err, process|
        input.close
        finish(out, err, process, timeout)
      end
    end

    def timed_out?
      @timed_out
    end

    # What must be the same under every recorder.
    def outcome
      { out: out, err: err, exit: status.exitstatus, signal: status.termsig, timed_out: timed_out? ? true : false }
    end

    private

    def finish(out, err, process, timeout)
      readers = [out, err].map { |io| Thread.new { io.read } }
      @timed_out = process.join(timeout).nil?
      end_group(process.pid) if @timed_out
      @out, @err = readers.map(&:value)
      @status = process.value
    end

    # The program and what it forked share a process group of their own.
    def end_group(pid)
      Process.kill(:KILL, -pid)
    rescue Errno::ESRCH
      nil
    end
  end
end
