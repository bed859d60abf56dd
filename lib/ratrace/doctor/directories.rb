# frozen_string_literal: true

require "fcntl"

module Ratrace
  class Doctor
    # Where segments and slots go: may we write there, may others, is there room, and what have dead processes left?
    class Directories
      # struct flock with l_type F_WRLCK for the whole file
      LOCK = [Fcntl::F_WRLCK, IO::SEEK_SET, 0, 0, 0].pack("s!s!x4q!q!i!x4").freeze
      SLOT_EXTRA = 2 * 1024 * 1024 # bytes: head, dictionary and the like
      LISTED_MAX = 10_000

      # @return [Array<Finding>]
      attr_reader :findings

      def initialize(configuration)
        @configuration = configuration
        @findings = []
        out_dir
        live_dir
        metrics_file
      end

      private

      def add(area, level, text, remedy = nil)
        @findings << Finding.new(area: area, level: level, text: text, remedy: remedy)
      end

      def out_dir
        dir = @configuration.out_dir
        place = existing(dir)
        if !File.directory?(place) || !File.writable?(place) || Native.filesystem(place)[:read_only]
          return add("out_dir", "failure", "#{place} cannot be written by user #{Process.euid}", "set out_dir to a directory of this user's")
        end

        add("out_dir", "ok", File.directory?(dir) ? dir : "#{dir} will be made")
        File.directory?(dir) ? privacy("out_dir", dir) : shared_parent(dir, place)
        room("out_dir", place, 2 * @configuration.slot_size, @configuration.spool_size)
        leftovers(dir) if File.directory?(dir)
      rescue SystemCallError => e
        add("out_dir", "failure", "#{dir}: #{e.message}", "set out_dir to a directory of this user's")
      end

      # The directory, or the nearest above it that is there.
      def existing(dir)
        dir = File.dirname(dir) until File.exist?(dir)
        dir
      end

      def privacy(area, dir)
        stat = File.stat(dir)
        unless [Process.euid, 0].include?(stat.uid)
          add(area, "warning", "#{dir} belongs to user #{stat.uid}, who can remove what is in it", "use a directory of this user's")
        end
        return if (stat.mode & 0o022).zero?

        add(area, "warning", format("%<dir>s may be written by others (mode %<mode>04o)", dir: dir, mode: stat.mode & 0o7777),
            "chmod go-w #{dir}")
      end

      # Whoever is first makes the directory.
      def shared_parent(dir, place)
        return unless File.stat(place).mode & 0o002 == 0o002

        add("out_dir", "warning", "#{dir} does not exist, and anybody may make it in #{place}", "mkdir -m 0700 #{dir}")
      end

      def room(area, dir, needed, wished)
        free = Native.filesystem(dir)[:free]
        text = "#{size(free)} free"
        if free < needed
          add(area, "failure", "#{text}; a process writes up to #{size(needed)} at once", "make room, or set another #{area}")
        elsif free < wished
          add(area, "warning", "#{text}, less than spool_size (#{size(wished)})", "make room, or set spool_size below what is free")
        else
          add(area, "ok", text)
        end
      end

      def live_dir
        dir = @configuration.live_dir || "/dev/shm/ratrace-#{Process.euid}"
        place = existing(dir)
        found = Native.filesystem(place)
        return unless found[:tmpfs] # the trial tells

        each = 2 * @configuration.slot_size + SLOT_EXTRA
        count = found[:free] / each
        text = "#{size(found[:free])} free of #{size(found[:total])} in #{place}: room for #{count} more processes"
        return add("live_dir", "ok", text) if count >= 4

        add("live_dir", "warning", "#{text}; beyond that a killed process loses what was not flushed",
            "set slot_size below #{@configuration.slot_size}, or give the container a larger /dev/shm")
      rescue SystemCallError => e
        add("live_dir", "warning", "#{dir}: #{e.message}", "set live_dir to a directory on tmpfs")
      end

      def metrics_file
        path = @configuration.metrics_file or return
        dir = File.dirname(path)
        if File.directory?(dir) && File.writable?(dir)
          add("metrics_file", "ok", "#{dir} may be written")
        else
          add("metrics_file", "failure", "#{dir} is no directory that user #{Process.euid} may write to", "make it, or set another metrics_file")
        end
      end

      # ---------------------------------------------------------------- leftovers

      def leftovers(dir)
        parts = Dir.each_child(dir).lazy.select { |name| name.end_with?(".ratrace.part") }.first(LISTED_MAX)
        dead = parts.count { |name| abandoned?(File.join(dir, name)) } + unwritten(dir, parts)
        poison = File.join(dir, "poison")
        refused = File.directory?(poison) ? Dir.children(poison).size : 0
        if dead.positive?
          add("leftovers", "warning", "unfinished segments of dead processes: #{dead}", "ratrace recover #{dir}")
        else
          add("leftovers", "ok", "none; segments being written: #{parts.size}")
        end
        add("leftovers", "warning", "segments that the endpoint refused: #{refused}", "see #{poison}; the number in a name is the HTTP status") if refused.positive?
      end

      # Of these there is nothing in the directory yet, only memory. A segment's name tells the beginning of its session.
      def unwritten(dir, parts)
        Native.live_files(@configuration.live_dir).count do |file|
          file[:live] == false && file[:out_dir] == File.realpath(dir) && parts.none? { |name| name.include?("-#{file[:name][0, 8]}-") }
        end
      rescue Error
        0 # told of live_dir
      end

      # The owner of a part file holds a lock on it for as long as it lives.
      def abandoned?(path)
        File.open(path, File::RDWR | File::NOFOLLOW | File::NONBLOCK) do |file|
          asked = LOCK.dup
          file.fcntl(Fcntl::F_GETLK, asked)
          asked.unpack1("s!") == Fcntl::F_UNLCK
        end
      rescue SystemCallError
        false # gone, or another user's
      end

      def size(bytes)
        unit, factor = [["GiB", 1024**3], ["MiB", 1024**2], ["KiB", 1024]].find { |_, one| bytes >= one } || ["bytes", 1]
        "#{(bytes.to_f / factor).round(1)} #{unit}".sub(".0 ", " ")
      end
    end
  end
end
