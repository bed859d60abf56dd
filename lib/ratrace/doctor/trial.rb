# frozen_string_literal: true

require "fileutils"
require "tmpdir"

module Ratrace
  class Doctor
    # A recording of a few calls, read again: do the hooks see, and by which of the ways there are?
    class Trial
      CALLS = 3

      # @return [Array<Finding>]
      attr_reader :findings

      def initialize(configuration)
        @configuration = configuration
        @findings = []
        Dir.mktmpdir("ratrace-doctor") { |dir| try(dir) }
      rescue Error, SystemCallError => e
        add("recording", "failure", "a trial failed: #{e.message}", nil)
      end

      private

      def add(area, level, text, remedy = nil)
        @findings << Finding.new(area: area, level: level, text: text, remedy: remedy)
      end

      def try(dir)
        native = @configuration.to_native
        Native.start(native.merge(out_dir: dir, include: [__FILE__], exclude: [], own: nil, trace: nil, c_calls: false,
                                  debug: false))
        CALLS.times { called }
        stats = Native.stats
        path = Native.stop
        recorded(path)
        ways(stats)
      end

      def called
        1
      end

      def recorded(path)
        require_relative "../recording"
        count = Recording.new(path).each_event.count { |event| event["type"] == "call" && event["method"] == "called" }
        if count == CALLS
          add("recording", "ok", "a trial saw every call")
        else
          add("recording", "failure", "a trial saw #{count} of #{CALLS} calls: the VM's hooks are blind",
              "stop other tracers in this process; else report it with the output of `ratrace doctor`")
        end
      end

      def ways(stats)
        way("frames", stats[:frame_path] == "words", "the VM's frame words", "public calls, three times slower: #{stats[:frame_path_refused]}",
            @configuration.frame_words ? "nothing: this Ruby keeps its frames elsewhere" : "unset frame_words, if that is not meant")
        way("clock", stats[:clock] != "monotonic", stats[:clock], "CLOCK_MONOTONIC, slower than the CPU's counter",
            @configuration.clock == "auto" ? "nothing: the CPU's counter is not steady here" : "unset clock, if that is not meant")
        way("lock", stats[:fence] == "membarrier", "membarrier", "sequentially consistent atomics, slower than membarrier",
            @configuration.fence == "auto" ? "allow membarrier(2) in the seccomp profile" : "unset fence, if that is not meant")
        way("live_dir", stats[:live_file], "slots survive a killed process", "slots die with the process: #{stats[:live_file_refused]}",
            "set live_dir to a directory of this user's on tmpfs, or a smaller slot_size")
      end

      def way(area, good, well, badly, remedy)
        good ? add(area, "ok", well) : add(area, "warning", badly, remedy)
      end
    end
  end
end
