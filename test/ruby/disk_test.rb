# frozen_string_literal: true

require "json"
require "test_helper"
require "support/processes"
require "support/recordings"

# A disk that refuses while a process is recorded, and is mended: the process does not notice, what was dropped meanwhile
# is counted, and what comes afterwards is recorded.
class DiskTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  # Does what it is told, and says so. The slots hold 2,000 events each.
  HOST = <<~RUBY
    require "json"
    require "ratrace"
    module Work
      def self.before = 1
      def self.during = 1
      def self.after = 1
    end
    $stdout.sync = true
    Ratrace.start(out_dir: ARGV.fetch(0), slot_size: 16_384, period: ARGV.fetch(1).to_f)
    while (line = $stdin.gets)
      name, times = line.split
      if name == "flush"
        puts (Ratrace.flush && "flushed" rescue "refused: \#{$!.message}")
      else
        times.to_i.times { Work.public_send(name) }
        puts name
      end
    end
    puts JSON.generate(Ratrace.stats)
    Ratrace.stop
    exit 7
  RUBY

  FEW = 500
  MANY = 30_000

  def teardown
    system("umount", @mounted, err: File::NULL) if @mounted
    super
  end

  # A small filesystem of its own for the recording.
  def mount(options)
    @mounted = File.join(out_dir, "disk")
    Dir.mkdir(@mounted)
    skip "only root can mount a disk" unless Process.uid.zero?
    assert system("mount", "-t", "tmpfs", "-o", options, "ratrace-test", @mounted)
    @mounted
  end

  # Runs the host in `dir`; the block gets what asks it. Answers with its last words.
  def host(dir, period: 0.05, env: {})
    outcome = run_code(HOST, dir, period.to_s, env: env) do |_pid, stdin, out|
      yield ->(line) { stdin.puts(line) || within { out.gets.chomp } }
      nil
    end
    assert_equal ["", 7], [outcome.err, outcome.status.exitstatus]
    JSON.parse(outcome.out)
  end

  # ... while the disk is broken for a time.
  def survive(dir, breaking:, mending:, period: 0.05, **options)
    stats = host(dir, period: period, **options) do |ask|
      assert_equal "before", ask["before #{FEW}"]
      assert_equal "flushed", ask["flush"] if period < 1
      breaking.call
      assert_match(/\Arefused: cannot flush the recording: \S/, ask_until_refused(ask))
      mending.call
      assert_equal "flushed", ask["flush"]
      assert_equal "after", ask["after #{FEW}"]
    end
    assert_whole(dir, stats)
    stats
  end

  # A page of the file may have room for a little more.
  def ask_until_refused(ask)
    10.times do
      assert_equal "during", ask["during #{MANY}"]
      answer = ask["flush"]
      return answer unless answer == "flushed"
    end
    "flushed ten times"
  end

  # Each call is in the files or counted.
  def assert_whole(dir, stats)
    assert_sound(dir)
    calls = calls_in(dir, of: %w[before during after])
    assert_equal [FEW, FEW], calls.values_at("before", "after")
    lanes = account_of(dir)[:sessions].flat_map { |session| session[:lanes] }
    dropped = lanes.sum { |lane| lane[:dropped].values.sum }
    assert_equal 0, lanes.sum { |lane| lane[:lost].values.sum }
    assert_operator lanes.sum { |lane| lane[:decoded] } + dropped, :>=, 2 * (MANY + 2 * FEW)
    assert_equal stats["dropped"], dropped
    assert_operator stats["failed_writes"], :>, 0
    assert_empty Dir[File.join(dir, "*.part")]
  end

  def test_a_full_disk
    dir = mount("size=512k")
    ballast = File.join(dir, "ballast")
    stats = survive(dir, breaking: -> { fill(ballast) }, mending: -> { File.delete(ballast) })
    assert_operator stats["dropped"], :>, 0
  end

  def test_a_disk_without_room_for_another_file
    dir = mount("size=1m,nr_inodes=8")
    files = Array.new(8) { |i| File.join(dir, "file#{i}") }
    survive(dir, period: 3600, # the segment's file is made by the first flush
                 breaking: -> { files.each { |file| File.write(file, "") } rescue Errno::ENOSPC },
                 mending: -> { files.each { |file| FileUtils.rm_f(file) } })
  end

  def test_a_disk_that_turns_read_only
    dir = mount("size=1m")
    remount = ->(how) { assert system("mount", "-o", "remount,#{how}", dir) }
    survive(dir, period: 3600, breaking: -> { remount["ro"] }, mending: -> { remount["rw"] })
  end

  # The library says so, not the kernel.
  def test_a_disk_that_fails
    flag = File.join(out_dir, "flag")
    preload = [*ENV.fetch("LD_PRELOAD", nil), failing_disk].join(":") # a sanitizer's comes first
    survive(File.join(out_dir, "out"), env: { "LD_PRELOAD" => preload, "FAILING_DISK" => flag },
                                       breaking: -> { File.write(flag, "") }, mending: -> { File.delete(flag) })
  end

  def test_a_directory_deleted_and_made_anew
    dir = File.join(out_dir, "out")
    host(dir) do |ask|
      assert_equal %w[before flushed], [ask["before #{FEW}"], ask["flush"]]
      FileUtils.rm_rf(dir)
      assert_equal %w[during flushed], [ask["during #{FEW}"], ask["flush"]]
      assert_equal %w[after flushed], [ask["after #{FEW}"], ask["flush"]]
    end
    assert_equal({ "after" => FEW }, calls_in(dir, of: %w[before after]))
    assert_sound(dir)
  end

  # The signal that goes with it would end the process.
  def test_a_limit_of_file_sizes
    dir = File.join(out_dir, "out")
    code = <<~RUBY
      require "ratrace"
      def work(n) = n.zero? ? rand : work(n - 1)
      Process.setrlimit(:FSIZE, 100_000, Process::RLIM_INFINITY)
      Ratrace.start(out_dir: ARGV.fetch(0), slot_size: 65_536, period: 0.02)
      3000.times { |i| work(i % 40); sleep 0.001 if (i % 50).zero? }
      Process.setrlimit(:FSIZE, Process::RLIM_INFINITY)
      Ratrace.flush
      Ratrace.stop
      puts "alive"
    RUBY
    assert_equal "alive\n", run_well(code, dir)
    assert_sound(dir)
  end

  private

  def fill(path)
    File.open(path, "w") { |file| loop { file.write("x" * 4096) && file.flush } }
  rescue Errno::ENOSPC
    nil
  end

  # A library whose pwrite() to a segment fails as long as a file exists.
  def failing_disk
    source = File.join(out_dir, "disk.c")
    library = File.join(out_dir, "disk.so")
    File.write(source, <<~C)
      #define _GNU_SOURCE
      #include <dlfcn.h>
      #include <errno.h>
      #include <stdio.h>
      #include <stdlib.h>
      #include <string.h>
      #include <unistd.h>

      ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at)
      {
          static ssize_t (*real)(int, const void *, size_t, off_t);
          char link[64], path[4096];
          const char *flag = getenv("FAILING_DISK");
          if (real == NULL)
              real = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
          snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
          ssize_t size = readlink(link, path, sizeof path - 1);
          if (size > 5 && memcmp(path + size - 5, ".part", 5) == 0 && flag != NULL && access(flag, F_OK) == 0) {
              errno = EIO;
              return -1;
          }
          return real(fd, bytes, length, at);
      }
    C
    assert system("cc", "-shared", "-fPIC", "-o", library, source)
    library
  end
end
