# frozen_string_literal: true

require_relative "../ratrace"

module Ratrace
  # What was recorded: the segment files of one or more processes, read in order.
  #
  #   Ratrace::Recording.new("ratrace.out").each_event { |event| p event if event["type"] == "call" }
  #
  # Reading streams: memory is bounded, however large the files are, and the interpreter's lock is given up meanwhile.
  class Recording
    # Segments, and those still being written or left by a crash.
    PATTERN = "*.ratrace{,.part}"
    NONE = "no recording in it; make one with `ratrace record`, or finish a killed process's with `ratrace recover`"
    MEMORY_MIN = 16 * 1024 * 1024

    # @return [Array<String>] the files
    attr_reader :paths

    # @param paths [Array<String>] segment files, or directories of them
    # @param memory_max [Integer, nil] bytes that reading may take; default 512 MiB
    # @raise [ReadError] when a path does not exist, or a directory holds no segment
    # @raise [ConfigurationError] for a memory_max that is not allowed
    def initialize(*paths, memory_max: nil)
      raise ReadError, "no path given: name segment files or a directory of them" if paths.flatten.empty?

      @memory_max = check_memory(memory_max)
      @paths = paths.flatten.flat_map { |path| files_at(path) }.uniq.freeze
    end

    # Every event in order: by process, then as recorded. Within a lane (all threads of a Ractor) that is the order of
    # time; lanes follow each other by chunks.
    #
    # Each is a Hash with the keys "type" ("call", "return", "c_call", "c_return", "unwind", "unmatched", "switch",
    # "snapshot", "end", "note", "gate" or "cost"), "t" (CLOCK_MONOTONIC in ns), "lane", "context", "process" (pid) and "session";
    # and, by type:
    # - call, c_call: "owner", "method", "called" (nil = as method), "kind", "file", "line"
    # - unwind: "count"
    # - snapshot: "frames" (bottom first; as of a call, and "base"), "base" (how many), "reason"
    # - end: "reason" ("stop", "context_died" or "fork")
    # - note: "note", "value"
    # - gate: the method as of a call, "state" ("closed", "open" or "count"), "left_out" (its calls so far that were
    #   counted and not recorded), "share" (of ratrace in the process's CPU time), "site" (number of the method body)
    # - cost: "hooks_ns", "serializer_ns", "process_ns", "gvl_ns", "events"; all since the recording began
    # Names are UTF-8 where they are valid, else ASCII-8BIT. Names are frozen and shared.
    #
    # @yieldparam event [Hash{String => Object}]
    # @return [self, Enumerator]
    # @raise [ReadError]
    def each_event(&block)
      return to_enum(:each_event) unless block

      Native.replay_events(paths, native_options, &block)
      self
    end

    # Calls added up: rows by method, and by thread.
    #
    # A method's total is the time from its calls to their returns, waiting included, of a recursion once; self is total
    # less the totals of what it called.
    #
    # @param threads [Boolean] also the rows of each thread
    # @param tree [Boolean] also the call tree of each thread
    # @param min_share [Float] leave out subtrees below this share of the whole time, 0..1
    # @param merged [Boolean] all threads as one
    # @param nodes_max [Integer, nil] bound of the tree; calls beyond are added up as "(folded)"
    # @return [Hash{Symbol => Object}] :rows, :threads, :total_ns, :folded; and what {#account} gives
    # @raise [ReadError]
    def profile(threads: false, tree: false, min_share: 0.0, merged: false, nodes_max: nil)
      options = { threads: threads, tree: tree, min_share: min_share, merged: merged, nodes_max: nodes_max }
      Native.profile(paths, native_options.merge(options)).tap { |result| refuse_empty(result) }
    end

    # What became of every event, a session and lane at a time, from the files alone.
    #
    # @return [Hash{Symbol => Array}] :sessions and :files
    # @raise [ReadError]
    def account
      Native.account(paths, native_options)
    end

    # Who was recorded: one entry a process life.
    #
    # @return [Array<Hash{Symbol => Object}>]
    # @raise [ReadError]
    def sessions
      account[:sessions]
    end

    private

    def native_options
      { memory_max: @memory_max }
    end

    def check_memory(value)
      return value if value.nil? || (value.is_a?(Integer) && value >= MEMORY_MIN)

      raise ConfigurationError, "memory_max: #{value.inspect} is not allowed; use at least #{MEMORY_MIN} bytes"
    end

    def files_at(path)
      path = path.respond_to?(:to_path) ? path.to_path : path.to_str
      return [path] if File.file?(path)
      raise ReadError, "#{path}: no such file or directory" unless File.exist?(path)
      raise ReadError, "#{path}: neither a file nor a directory" unless File.directory?(path)

      files = Dir.glob(PATTERN, base: path).sort
      raise ReadError, "#{path}: #{NONE}" if files.empty?

      files.map { |file| File.join(path, file) }
    rescue SystemCallError => e
      raise ReadError, "#{path}: cannot be read: #{e.message}"
    end

    def refuse_empty(result)
      return unless result[:sessions].empty?

      raise ReadError, "#{paths.first}: no recorded data in it; `ratrace verify` says what is"
    end
  end
end
