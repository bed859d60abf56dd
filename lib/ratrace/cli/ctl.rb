# frozen_string_literal: true

require "socket"
require_relative "command"
require_relative "text"

module Ratrace
  class CLI
    # `ratrace ctl`: start and stop the recording of a process that runs, through its control socket.
    class Ctl < Command
      REQUESTS = %w[start stop flush status].freeze
      PATIENCE = 10 # seconds; stopping writes what is left
      ADDRESS_MAX = 107
      ANSWER_MAX = 1024 * 1024

      private

      def define(options)
        options.banner = "Usage: ratrace ctl [OPTIONS] PID start|stop|flush|status\n\nSpeaks to a process that ratrace " \
                         "records as a service (RATRACE_CONTROL is on),\nor would but for RATRACE_ENABLED, of the " \
                         "same user. start and stop change nothing\nin its files or settings.\n\n"
        options.on("--dir DIR", "Its output directory, if it cannot be found by itself") do |dir|
          @options[:dir] = dir
        end
        options.on("--json", "status as JSON") { @options[:json] = true }
      end

      def execute(operands)
        pid, request, *rest = operands
        raise UsageError, "give a process id and one of #{REQUESTS.join(", ")}; see `ratrace ctl --help`" unless request && rest.empty?
        raise UsageError, "#{pid} is no process id" unless pid.match?(/\A[1-9]\d{0,9}\z/)
        raise UsageError, "unknown request #{request}; known are #{REQUESTS.join(", ")}" unless REQUESTS.include?(request)

        outcome, *lines = ask(pid.to_i, request).lines(chomp: true)
        raise Error, outcome.to_s.delete_prefix("error ") unless outcome&.start_with?("ok")

        request == "status" ? status(lines) : @out.puts(Text.clean(outcome.delete_prefix("ok ")))
        SUCCESS
      end

      # ---------------------------------------------------------------- the other process

      def ask(pid, request)
        dir = @options[:dir] || directory_of(pid) || @env["RATRACE_OUT_DIR"] || "ratrace.out"
        connect(dir, "ratrace-#{pid}.sock") do |socket|
          check_peer(socket, pid)
          socket.write("#{request}\n")
          read(socket)
        end
      rescue Errno::ENOENT, Errno::ECONNREFUSED
        raise Error, "there is no process #{pid}" if @options[:dir].nil? && gone?(pid)

        raise Error, "process #{pid} does not listen in #{dir}; is it recorded as a service, for a second at least? " \
                     "--dir names its output directory"
      rescue Errno::EPIPE, Errno::ECONNRESET
        raise Error, "process #{pid} hung up: it is ending, or belongs to another user, and hears only that one"
      end

      def gone?(pid)
        Process.kill(0, pid)
        false
      rescue Errno::EPERM
        false
      rescue Errno::ESRCH, RangeError
        true
      end

      # Where its socket was bound, as the kernel tells it; it got its name from a temporary one.
      def directory_of(pid)
        name = "/ratrace-#{pid}.sock.new"
        path = File.foreach("/proc/#{pid}/net/unix").filter_map { |line| line.chomp.split(" ", 8)[7] }
                   .find { |bound| bound.end_with?(name) && !bound.start_with?("/proc/") }
        path&.delete_suffix(name)
      rescue SystemCallError
        nil
      end

      # An address holds a short path only; a longer one goes through the directory's descriptor.
      def connect(dir, name)
        path = File.join(File.expand_path(dir), name)
        return UNIXSocket.open(path) { |socket| yield socket } if path.bytesize <= ADDRESS_MAX

        Dir.open(dir) do |opened|
          UNIXSocket.open("/proc/self/fd/#{opened.fileno}/#{name}") { |socket| yield socket }
        end
      end

      # In a directory that others can write to, anybody could answer.
      def check_peer(socket, pid)
        user, = socket.getpeereid
        return if user == Process.euid

        raise Error, "what answers for process #{pid} belongs to user #{user}; run this as that user"
      end

      def read(socket)
        answer = +""
        deadline = now + PATIENCE
        while answer.bytesize < ANSWER_MAX
          raise Error, "no answer within #{PATIENCE} s" unless socket.wait_readable([deadline - now, 0].max)

          part = socket.read_nonblock(4096, exception: false)
          return answer if part.nil?

          answer << part unless part == :wait_readable
        end
        raise Error, "the answer is too long"
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      # ---------------------------------------------------------------- status

      def status(lines)
        values = lines.to_h { |line| line.split(" ", 2) }.transform_values { |text| literal(text.to_s) }
        return @out.puts(json(values)) if @options[:json]

        width = values.keys.map(&:length).max.to_i
        values.each { |name, value| @out.puts "#{name.ljust(width)}  #{shown(value)}".rstrip }
      end

      def literal(text)
        case text
        when "nil" then nil
        when "true" then true
        when "false" then false
        when /\A-?\d+\z/ then Integer(text, 10)
        when /\A-?\d+(\.\d+)?(e[+-]?\d+)?\z/ then Float(text)
        when /\A"/ then text.undump
        else text
        end
      end

      def shown(value)
        value.is_a?(Integer) ? Text.count(value) : Text.clean(value.to_s)
      end

      # "drops.slot_full" is one of "drops".
      def json(values)
        require "json"
        nested = values.each_with_object({}) do |(name, value), hash|
          *outer, inner = name.split(".")
          outer.inject(hash) { |into, key| into[key] ||= {} }[inner] = value
        end
        JSON.pretty_generate(nested)
      end
    end
  end
end
