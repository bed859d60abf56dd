# frozen_string_literal: true

module Ratrace
  # Prometheus text in a file for node_exporter's textfile collector, one a process: of "dir/ratrace.prom" it is
  # "dir/ratrace-PID.prom". It is replaced in one step, readable for all, because a collector is another user; nothing is
  # followed or opened that lies there. Files of processes that are gone are removed.
  class MetricsFile
    MODE = 0o644
    STALE = 120 # seconds since a file was written; in another container its process could not be seen

    # @param path [String] the setting metrics_file
    def initialize(path)
      @stem = path.delete_suffix(File.extname(path))
      @extension = File.extname(path)
      @path = "#{@stem}-#{Process.pid}#{@extension}"
      @stat = nil
    end

    # @raise [SystemCallError]
    def write(text)
      raise Errno::EFBIG, @path if text.bytesize > Process.getrlimit(:FSIZE).first # SIGXFSZ would end the host

      sweep unless @stat
      early = "#{@path}.new"
      forget(early)
      File.open(early, File::WRONLY | File::CREAT | File::EXCL | File::NOFOLLOW, MODE) do |file|
        file.chmod(MODE)
        file.write(text)
        @stat = file.stat
      end
      File.rename(early, @path)
    end

    # Unless another's lies there by now.
    def remove
      here = File.lstat(@path)
      File.unlink(@path) if @stat && [here.dev, here.ino] == [@stat.dev, @stat.ino]
    rescue SystemCallError
      nil
    end

    private

    # What a write of ours that was cut short left; anything else is in the way, and creating says so.
    def forget(early)
      found = File.lstat(early)
      File.unlink(early) if found.file? && found.owned?
    rescue Errno::ENOENT
      nil
    end

    def sweep
      Dir.glob("#{glob(@stem)}-*#{glob(@extension)}").each do |path|
        pid = path.delete_prefix("#{@stem}-").delete_suffix(@extension)
        found = File.lstat(path)
        next unless pid.match?(/\A\d+\z/) && found.file? && found.owned? && Time.now - found.mtime > STALE

        File.unlink(path) unless alive?(pid.to_i)
      rescue SystemCallError
        next
      end
    end

    def glob(text)
      text.gsub(/[\[\]{}*?\\]/) { |special| "\\#{special}" }
    end

    def alive?(pid)
      Process.kill(0, pid)
      true
    rescue Errno::ESRCH
      false
    rescue Errno::EPERM
      true
    end
  end
end
