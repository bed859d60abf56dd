# frozen_string_literal: true

require "fileutils"
require "json"
require "openssl"
require "securerandom"
require "time"
require_relative "errors"
require_relative "record"
require_relative "verifier"

module Ratrace
  class Receiver
    # The directory of what was received.
    #
    #   NAME.ratrace        a segment, verified before it got its name
    #   NAME.ratrace.json   its record: digest, key, when, what is in it (record.rb)
    #   .upload-*           being written; whatever of these is there at start is left of a crash and removed
    #   .spool/             where Puma puts bodies it is still reading (gate.rb)
    #   .lock               held by the one `ratrace serve` of this directory
    #
    # One upload is settled at a time: is its key or its name known, does it verify, is there room; then the record is
    # written, then the segment gets its name. That rename is the moment from which it is there: a crash before it leaves
    # a record without a segment, which the next start removes. A segment without a record was put there by somebody; it
    # gets one at the next start if it verifies.
    #
    # Each byte on the disk is accounted for before it is written (`reserve`), so that the bound holds at any moment.
    # Files that somebody removes are forgotten at the next look.
    #
    # Threads: any number; one lock for settling, one for the tables.
    class Store
      NAME = /\A[A-Za-z0-9_][A-Za-z0-9._-]{0,240}\.ratrace\z/.freeze
      SUFFIX = ".json"
      UPLOAD = ".upload-"
      PIECE = 256 * 1024
      COUNT_MAX = 100_000
      DISK_MAX = 10 * 1024**3

      # @return [String] directory for bodies that are being read
      attr_reader :spool

      def self.check_name(name)
        name = name.b
        return name.encode("US-ASCII") if name.match?(NAME)

        raise Refusal.new(400, "a segment's name is letters, digits, '.', '_' and '-', at most 249, and ends in .ratrace")
      end

      # @param dir [String] made if missing; must be ours and closed to others
      # @param disk_max [Integer] bytes of all that lies in it
      # @param verifier [Verifier]
      # @param log [#puts]
      def initialize(dir, disk_max: DISK_MAX, verifier: Verifier.new, log: $stdout)
        @disk_max = disk_max
        @verifier = verifier
        @log = log
        @settling = Mutex.new
        @tables = Mutex.new
        @records = {}
        @keys = {}
        @used = 0
        open_directory(dir)
        load_records
      end

      # @param input [#read] the body
      # @param name [String, nil] nil = made from the content
      # @param key [String, nil] of idempotency
      # @return [Array(Record, Boolean)] and whether it is new
      def add(input, name:, key:, max:)
        with_upload do |path, file|
          size, sha256 = copy(input, file, max)
          @settling.synchronize { settle(path, size, sha256, name, key) }
        end
      end

      # Keep what a shipper told of a segment. False: it is kept already.
      def annotate(record, metadata)
        @settling.synchronize do
          record = find(record.name) || raise(Refusal.new(404, "there is no recording of that name"))
          return false if record.metadata == metadata
          raise Refusal.new(409, "other metadata of #{record.name} came before") if record.metadata

          keep(record.with_metadata(metadata))
          true
        end
      end

      # @return [Array<Record>] newest first
      def all
        look
        @tables.synchronize { @records.values }.sort_by { |record| [-record.start_ns, record.name] }
      end

      def find(name)
        look
        @tables.synchronize { @records[name] }
      end

      def find_key(key)
        @tables.synchronize { @records[@keys[key]] }
      end

      def path(record)
        File.join(@dir, record.name)
      end

      def open(record)
        Download.new(File.open(path(record), File::RDONLY | File::NOFOLLOW | File::BINARY))
      rescue Errno::ENOENT
        raise Refusal.new(404, "there is no recording of that name")
      end

      # @return [Array(Integer, Integer)] bytes in use, and how many there may be
      def usage
        [@tables.synchronize { @used }, @disk_max]
      end

      # Make room for so many bytes more on the disk, or give it back.
      # @raise [Refusal] 507
      def reserve(bytes)
        @tables.synchronize do
          raise full if bytes.positive? && @used + bytes > @disk_max

          @used += bytes
        end
      end

      def release(bytes)
        @tables.synchronize { @used -= bytes }
      end

      # A body that is sent piece by piece.
      class Download
        def initialize(file)
          @file = file
        end

        def each
          while (piece = @file.read(PIECE))
            yield piece
          end
        end

        def close
          @file.close
        end
      end

      private

      def full
        Refusal.new(507, "this receiver may hold #{@disk_max} bytes, and they are used; remove recordings or raise " \
                         "--max-disk")
      end

      # ------------------------------------------------------------ the directory

      def open_directory(dir)
        FileUtils.mkdir_p(File.dirname(File.expand_path(dir)))
        begin
          Dir.mkdir(dir, 0o700)
        rescue Errno::EEXIST
          nil
        end
        @dir = File.realpath(dir)
        stat = File.stat(@dir)
        raise Error, "#{dir}: is no directory" unless stat.directory?
        raise Error, "#{dir}: belongs to user #{stat.uid}; give a directory of your own" unless stat.owned?
        raise Error, "#{dir}: is open to others; its mode must be 0700" unless (stat.mode & 0o077).zero?

        lock(dir)
        @spool = File.join(@dir, ".spool")
        left = Dir.children(@dir).select { |name| name.start_with?(UPLOAD) }.map { |name| File.join(@dir, name) }
        FileUtils.rm_rf([@spool, *left])
        Dir.mkdir(@spool, 0o700)
      end

      def lock(dir)
        @lock = File.open(File.join(@dir, ".lock"), File::RDWR | File::CREAT | File::NOFOLLOW, 0o600)
        raise Error, "#{dir}: another `ratrace serve` has it" unless @lock.flock(File::LOCK_EX | File::LOCK_NB)
      end

      def load_records
        names = Dir.children(@dir)
        segments = names.grep(NAME).sort
        segments.each do |name|
          record = Record.load(File.join(@dir, name + SUFFIX), name) || adopt(name)
          enter(record, record.size + record.to_json.bytesize) if record
        end
        widows = names.grep(/\.ratrace\.json\z/) - segments.map { |name| name + SUFFIX }
        widows.each { |name| File.unlink(File.join(@dir, name)) }
        @seen = File.stat(@dir).mtime
      end

      # A segment that has no record.
      def adopt(name)
        path = File.join(@dir, name)
        return unless File.lstat(path).file?

        record = Record.new(name: name, size: File.size(path), sha256: OpenSSL::Digest.new("SHA256").file(path).hexdigest,
                            key: nil, received: File.mtime(path).utc.iso8601, **@verifier.summary(path))
        write_record(record)
        record
      rescue Refusal => e
        @log.puts("left alone: #{name}: #{e.message}")
        nil
      end

      # Forget what somebody removed. Only looked for when the directory changed.
      def look
        seen = File.stat(@dir).mtime
        gone = @tables.synchronize do
          next [] if seen == @seen

          @seen = seen
          there = Dir.children(@dir).to_h { |name| [name, true] }
          @records.values.reject { |record| there[record.name] }
        end
        gone.each { |record| forget(record) }
      end

      def forget(record)
        @tables.synchronize do
          next unless @records[record.name].equal?(record) # else it came again meanwhile

          @records.delete(record.name)
          @keys.delete(record.key)
          @used -= record.size + record.to_json.bytesize
          FileUtils.rm_f(path(record) + SUFFIX)
        end
      end

      # ------------------------------------------------------------ taking in

      # A file of its own for what comes in, gone at the end unless it got a name; then its bytes stay reserved.
      def with_upload
        path = File.join(@dir, UPLOAD + SecureRandom.hex(16))
        File.open(path, File::WRONLY | File::CREAT | File::EXCL | File::NOFOLLOW | File::BINARY, 0o600) do |file|
          file.sync = true
          yield path, file
        ensure
          if File.exist?(path)
            File.unlink(path)
            release(file.size)
          end
        end
      end

      def copy(input, file, max)
        digest = OpenSSL::Digest.new("SHA256")
        size = 0
        while (piece = input&.read(PIECE))
          raise Refusal.new(413, "a segment may have #{max} bytes") if size + piece.bytesize > max

          append(file, piece, size)
          size += piece.bytesize
          digest << piece
        end
        raise Refusal.new(400, "the body is empty: a segment was expected") if size.zero?

        file.fsync
        [size, digest.hexdigest]
      end

      # What is reserved and what lies on the disk stay equal, also when the disk is full before its bound.
      def append(file, piece, size)
        reserve(piece.bytesize)
        file.write(piece)
      rescue SystemCallError
        file.truncate(size)
        release(piece.bytesize)
        raise
      end

      def settle(path, size, sha256, name, key)
        known = known(name, key, sha256)
        return [known, false] if known

        summary = @verifier.summary(path)
        name ||= Record.name_of(summary)
        known = known(name, nil, sha256)
        return [known, false] if known
        raise Refusal.new(507, "this receiver may hold #{COUNT_MAX} segments") if @records.size >= COUNT_MAX

        record = Record.new(name: name, size: size, sha256: sha256, key: key, received: Time.now.utc.iso8601, **summary)
        keep(record) { publish(path, record) }
        [record, true]
      end

      # What was stored under this key or this name, if it is the same.
      def known(name, key, sha256)
        record = (key && find_key(key)) || (name && find(name))
        return unless record
        return record if record.sha256 == sha256

        by = key && record.key == key ? "under this Idempotency-Key" : "under this name"
        raise Refusal.new(409, "another segment was stored #{by}: #{record.name}")
      end

      # A file that somebody put there meanwhile is not replaced.
      def publish(upload, record)
        target = path(record)
        if File.symlink?(target) || File.exist?(target)
          raise Refusal.new(409, "a file of this name is there already: #{record.name}")
        end

        File.rename(upload, target)
      end

      def keep(record)
        before = find(record.name)
        reserve(record.to_json.bytesize)
        begin
          write_record(record)
          yield if block_given?
        rescue StandardError
          release(record.to_json.bytesize)
          FileUtils.rm_f(path(record) + SUFFIX) unless before
          raise
        end
        sync_directory
        release(before.to_json.bytesize) if before
        enter(record, 0)
      end

      def enter(record, bytes)
        @tables.synchronize do
          @records[record.name] = record
          @keys[record.key] = record.name if record.key
          @used += bytes
        end
      end

      def write_record(record)
        path = File.join(@dir, UPLOAD + SecureRandom.hex(16))
        File.open(path, File::WRONLY | File::CREAT | File::EXCL | File::NOFOLLOW, 0o600) do |file|
          file.write(record.to_json)
          file.fsync
        end
        File.rename(path, File.join(@dir, record.name + SUFFIX))
        sync_directory
      ensure
        FileUtils.rm_f(path)
      end

      def sync_directory
        File.open(@dir, &:fsync)
      end
    end
  end
end
