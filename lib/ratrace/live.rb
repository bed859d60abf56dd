# frozen_string_literal: true

require_relative "../ratrace"

module Ratrace
  # A running process that is being recorded, seen from outside: it is asked nothing, and notices nothing.
  #
  #   Ratrace::Live.find("4711").each { |live| live.look(1000) { |event| p event } }
  #
  # Its slots hold what was recorded since about two periods; who looks less often than once a period misses events, and
  # is told how many.
  #
  # Threads: one at a time for each object.
  class Live
    # @return [Integer]
    attr_reader :pid
    # @return [String]
    attr_reader :service, :host, :ruby, :name

    class << self
      # @param target [String] a pid, or the directory processes record into
      # @param live_dir [String, nil] where their live files are; default RATRACE_LIVE_DIR, else /dev/shm/ratrace-UID
      # @param except [Array<String>] names of live files that are not wanted
      # @return [Array<Live>] those that run now, by pid
      # @raise [ReadError] when the only ones that may be meant cannot be read
      def find(target, live_dir: nil, except: [], **options)
        files = Native.live_files(live_dir).reject { |file| except.include?(file[:name]) }
        found = files.select { |file| file[:live] && match?(file, target) }.sort_by { |file| file[:pid] }
        broken = files.find { |file| file[:error] && meant?(file[:holder], target) }
        raise ReadError, "#{broken[:name]}: cannot be looked at: #{broken[:error]}" if found.empty? && broken

        found.filter_map { |file| open(file, live_dir, options) }
      end

      private

      def pid?(target)
        target.match?(/\A\d+\z/)
      end

      # May whoever holds a file that cannot be read be meant? What nobody holds is of no running process.
      def meant?(holder, target)
        pid?(target) ? holder == Integer(target, 10) : holder.positive?
      end

      def match?(file, target)
        return file[:pid] == Integer(target, 10) if pid?(target)

        file[:out_dir] == File.realpath(target)
      rescue SystemCallError
        false
      end

      # It may end between the two looks at it.
      def open(file, live_dir, options)
        new(file, live_dir, **options)
      rescue ReadError
        raise if Native.live_files(live_dir).any? { |other| other[:name] == file[:name] && other[:live] != false }
      end
    end

    # @param file [Hash] as of Native.live_files
    # @param profile [Boolean] add calls up for {cut} instead of keeping events
    def initialize(file, live_dir, profile: false, memory_max: nil)
      @pid, @service, @host, @ruby, @name = file.values_at(:pid, :service, :host, :ruby, :name)
      @tap = Native.tap_open(live_dir, @name, { profile: profile, memory_max: memory_max })
    end

    # What was recorded since the last look; the first one begins with what the slots hold.
    #
    # @param limit [Integer] of more events than about this, only the newest are yielded
    # @yieldparam event [Hash{String => Object}] as of {Recording#each_event}
    # @return [Hash{Symbol => Object}] :events, :missed and :dropped since the beginning; :skipped by the limit in this
    #   look; :over when the process or its recording has ended
    # @raise [ReadError]
    def look(limit = 1, &block)
      Native.tap_look(@tap, limit, &block)
    end

    # What was called since the last cut; a frame still open counts as far as it got.
    #
    # @return [Hash{Symbol => Array}] :rows as of {Recording#profile}, :threads with their current frames
    def cut
      Native.tap_cut(@tap)
    end

    def close
      Native.tap_close(@tap)
    end
  end
end
