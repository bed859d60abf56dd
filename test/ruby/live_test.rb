# frozen_string_literal: true

require_relative "recording_helper"
require "json"
require "pty"
require "ratrace/live"
require "timeout"

# `ratrace top` and `ratrace tail` on real recorded processes.
class LiveTest < Minitest::Test
  include RecordingHelper
  parallelize_me!

  PATIENCE = 60

  # Does what it is told, line by line.
  OBEDIENT = <<~'RUBY'
    class Work
      def step(n) = leaf(n)
      def leaf(n) = n
      define_method(:"<b>\e[31m") { }
      def wait = $stdin.gets
      def hold = loop { step(1) && sleep(0.001) }
    end
    $stdout.sync = true
    puts Process.pid
    work = Work.new
    while (line = work.wait)
      word, count = line.split
      case word
      when "step" then count.to_i.times { |i| work.step(i) }
      when "odd" then work.send(:"<b>\e[31m")
      when "flush" then Ratrace.flush
      when "hold" then work.hold
      when "spin" then loop { work.step(1); sleep(0.001) }
      when "fork"
        fork { loop { work.leaf(1); sleep(0.01) } }.then { |pid| puts pid; next }
      end
      puts "done"
    end
  RUBY

  # A recorded process.
  class Recorded
    attr_reader :pid, :out_dir, :live_dir

    def initialize(program, *options)
      @live_dir = Dir.mktmpdir("ratrace-live", RecordingHelper::MEMORY)
      @out_dir = File.join(@live_dir, "out")
      script = File.join(@live_dir, "program.rb")
      File.write(script, program)
      @env = { "RATRACE_LIVE_DIR" => @live_dir, "RUBYOPT" => nil }
      command = [RbConfig.ruby, "-w", RecordingHelper::EXE, "record", "--out-dir", @out_dir, *options, script]
      @in, @out, @err, @thread = Open3.popen3(@env, *command, pgroup: true)
      @pid = Timeout.timeout(PATIENCE) { @out.gets.to_i }
    end

    attr_reader :env

    def ask(line)
      @in.puts(line)
      Timeout.timeout(PATIENCE) { @out.gets }.to_s.chomp
    end

    # Let it go on without an answer.
    def tell(line)
      @in.puts(line)
    end

    def finish
      @in.close unless @in.closed?
      Timeout.timeout(PATIENCE) { @thread.value }
    end

    def close
      Process.kill(:KILL, -@thread.pid)
    rescue Errno::ESRCH
      nil
    ensure
      @thread.join
      [@in, @out, @err].each { |io| io.close unless io.closed? }
      FileUtils.rm_rf(@live_dir)
    end
  end

  def recorded(*options, program: OBEDIENT)
    process = Recorded.new(program, *options)
    yield process
  ensure
    process&.close
  end

  # The command in a process of its own.
  def watch(process, *arguments)
    Open3.popen3(process.env, RbConfig.ruby, "-w", EXE, *arguments) do |stdin, out, err, thread|
      stdin.close
      yield out, thread.pid
      [Timeout.timeout(PATIENCE) { out.read }, err.read, Timeout.timeout(PATIENCE) { thread.value }]
    ensure
      begin
        Process.kill(:KILL, thread.pid)
      rescue Errno::ESRCH
        nil
      end
    end
  end

  def read_until(out)
    Timeout.timeout(PATIENCE) do
      seen = []
      loop do
        seen << out.gets
        return seen if yield(seen.last)
      end
    end
  end

  def events(text)
    text.lines.map { |line| JSON.parse(line) }
  end

  # ------------------------------------------------------------ tail

  # Each flip waits until what it would give out again was seen.
  def test_tail_shows_what_print_shows_of_the_file
    recorded("--period", "3600") do |process|
      seen = []
      rest, err, status = watch(process, "tail", "--json", "-n", "100000", process.pid.to_s) do |out|
        waits = -> { seen.concat(read_until(out) { |line| line.include?('"call","t"') && line.include?('"wait"') }) }
        waits.call
        10.times do |i|
          ["step #{(i * 37) + 1}", "step 1", "flush"].each { |line| process.ask(line) && waits.call }
        end
        process.finish
      end
      told = events(seen.join + rest)
      written = events(ratrace!("print", "--json", process.out_dir))
      what = ->(event) { event.values_at("type", "context", "owner", "method", "kind", "file", "line", "process", "session") }
      calls = ->(list) { list.select { |event| %w[call return c_call c_return].include?(event["type"]) }.map(&what) }

      assert_equal ["", 0], [err, status.exitstatus]
      assert_empty(told.select { |event| event["type"] == "absent" })
      assert_equal calls.call(written), calls.call(told)
      assert_equal 1685, told.count { |event| event["method"] == "leaf" }
    end
  end

  def test_what_comes_too_fast_is_counted
    recorded("--period", "0.01") do |process|
      seen = []
      rest, err, = watch(process, "tail", "--json", "-n", "100000", process.pid.to_s) do |out|
        seen.concat(read_until(out) { |line| line.include?('"wait"') })
        process.ask("step 1500000")
        process.finish
      end
      told = events(seen.join + rest)
      absent, shown = told.partition { |event| event["type"] == "absent" }
      lane = Ratrace::Recording.new(process.out_dir).account[:sessions].first[:lanes].find { |one| one[:lane] == 1 }

      assert_empty err
      refute_empty absent
      unseen = lane[:decoded] - shown.size - absent.sum { |event| event["count"] }
      assert_includes 0..20, unseen # what was flipped away before tail came
    end
  end

  def test_tail_begins_with_the_last_events
    recorded("--period", "30") do |process|
      process.ask("step 1000")
      text, = watch(process, "tail", "-n", "3", process.pid.to_s) do |out|
        lines = read_until(out) { |line| line.include?("> Work#wait") }
        assert_equal 4, lines.size, lines.join # and the line that says whose they are
        assert_match(/\Aprocess #{process.pid}, session \h{32}\n\z/, lines.first)
        process.ask("odd")
        read_until(out) { |line| line.include?("> Work#<b>\\e[31m") }
        process.finish
      end
      assert_match(/end of context \d+: stop$/, text)
    end
  end

  def test_tail_of_a_directory_meets_children
    recorded("--period", "0.1") do |process|
      watch(process, "tail", "-n", "0", process.out_dir) do |out, pid|
        child = process.ask("fork")
        line = read_until(out) { |text| text.start_with?("#{child} ") && text.include?("Work#leaf") }.last
        assert_match(/\A#{child} +\d+\.\d{9}  1\/\d+ +[<>] Work#leaf/, line)
        Process.kill(:INT, pid)
      end.then { |_, err, status| assert_equal ["", 130], [err, status.exitstatus] }
    end
  end

  # ------------------------------------------------------------ top

  def test_top_shows_methods_and_threads
    recorded do |process|
      process.tell("spin")
      out, err, status = ratrace("top", "--once", "--interval", "0.5", process.pid.to_s, env: process.env)

      assert_equal ["", 0], [err, status]
      assert_match(%r{^pid #{process.pid}, program on \S+, ruby #{Regexp.escape(RUBY_VERSION)} \S+: }, out)
      assert_match(%r{: [\d,]*[1-9][\d,]* events/s, 0 dropped, 0 not seen$}, out)
      assert_match(/^ *[\d.]+% +\S+ \w+ +\S+ \w+ +[\d,]*[1-9][\d,]*  Work#step$/, out)
      assert_match(/^ *#{process.pid} +#{process.pid}  (running|sleeping) +\d  +main  /, out)
    end
  end

  # Frames that stay open count as far as they got: of each interval all of it, and no more.
  def test_intervals_add_up_to_the_time_between_them
    recorded do |process|
      process.tell("hold")
      live, = Ratrace::Live.find(process.pid.to_s, live_dir: process.live_dir, profile: true)
      cut = lambda do
        live.look
        live.cut[:rows].to_h { |row| [row[:frame][:method], row] }
      end
      within { sleep 0.01 until cut.call.key?("hold") }
      rows = Array.new(3) { sleep(0.05) && cut.call }
      rows.each do |interval|
        hold = interval.fetch("hold")
        assert_equal interval.each_value.map { |row| row[:total_ns] }.max, interval.each_value.sum { |row| row[:self_ns] }
        assert_operator hold[:total_ns], :>, 40_000_000
        assert_equal 0, hold[:calls]
        assert_operator interval.fetch("step")[:calls], :>, 0
      end
      live.close
    end
  end

  def test_top_of_a_directory_adds_up_its_processes
    recorded do |process|
      child = process.ask("fork")
      process.tell("spin")
      row = /^ *#{child} +#{child}  \w+ +\d+  +\S+  \S/ # once it has recorded something
      out = nil
      within { out, = ratrace("top", "--once", "--interval", "0.3", process.out_dir, env: process.env) until row.match?(out.to_s) }

      assert_equal [process.pid, child.to_i].sort, out.scan(/^pid (\d+), program/).flatten.map(&:to_i)
    end
  end

  def test_q_quits_and_gives_the_terminal_back
    on_terminal(->(keyboard, _) { keyboard.write("q") }) do |text, modes|
      assert_equal 1, modes.uniq.size, text
      assert_includes text, "status=0"
      assert_match(/\e\[\?1049h.*Work#step.*\e\[\?1049l/m, text)
    end
  end

  def test_a_signal_gives_the_terminal_back_too
    on_terminal(->(_, pid) { Process.kill(:TERM, pid) }) do |text, modes|
      assert_equal 1, modes.uniq.size, text
      assert_includes text, "status=143"
      assert_match(/\e\[\?25h\e\[\?1049l/, text)
    end
  end

  def test_top_ends_with_its_process
    recorded do |process|
      text, err, status = watch(process, "top", "--interval", "0.2", process.pid.to_s) do |out|
        read_until(out) { |line| line.include?("Work#wait") }
        process.finish
      end
      assert_match(/^pid #{process.pid}, .*, ended$/, text)
      assert_equal ["", 0], [err, status.exitstatus]
    end
  end

  # ------------------------------------------------------------ what the process may not notice

  def test_nothing_is_locked_mapped_or_open_for_writing
    recorded do |process|
      process.tell("spin")
      watch(process, "top", "--interval", "0.2", process.pid.to_s) do |out, pid|
        read_until(out) { |line| line.include?("Work#step") }
        live = Dir["/proc/#{pid}/fd/*"].find { |fd| File.readlink(fd).end_with?(".live") }
        flags = File.read("/proc/#{pid}/fdinfo/#{File.basename(live)}")[/^flags:\s+(\d+)/, 1].to_i(8)

        assert_equal IO::RDONLY, flags & 3
        refute_match(/\.live$/, File.read("/proc/#{pid}/maps"))
        refute_match(/ #{pid} /, File.read("/proc/locks"))
        Process.kill(:INT, pid)
      end
    end
  end

  # ------------------------------------------------------------ mistakes

  def test_damaged_live_files_are_one_line
    Dir.mktmpdir("ratrace-live", MEMORY) do |dir|
      path = File.join(dir, "#{"ab" * 16}.live")
      magic = "ratlvev1" # and nothing after it
      ["x" * 100, "x" * 8192, magic + ("\0" * 8192)].each do |bytes|
        File.binwrite(path, bytes)
        owner(path) { assert_complaint(/\A#{"ab" * 16}\.live: cannot be looked at: [a-z ]+\n\z/, dir) }
      end
    end
  end

  def test_a_damaged_live_file_that_nobody_holds_is_nobodys_recording
    Dir.mktmpdir("ratrace-live", MEMORY) do |dir|
      File.binwrite(File.join(dir, "#{"ab" * 16}.live"), "x" * 8192)

      assert_complaint(/\Anobody records into #{dir}, /, dir)
    end
  end

  def test_a_damaged_live_file_is_told_to_who_asks_for_its_owner_only
    Dir.mktmpdir("ratrace-live", MEMORY) do |dir|
      path = File.join(dir, "#{"ab" * 16}.live")
      File.binwrite(path, "x" * 8192)
      owner(path) do |pid|
        { pid.to_s => /cannot be looked at/, "1" => /process 1 is not being recorded/ }.each do |target, why|
          %w[top tail].each do |command|
            out, err, status = ratrace(command, target, env: { "RATRACE_LIVE_DIR" => dir })

            assert_equal ["", 1], [out, status]
            assert_match(/\Aratrace: #{command}: [^\n]*#{why}[^\n]*\n\z/, err)
          end
        end
      end
    end
  end

  def test_mistakes_are_one_line
    Dir.mktmpdir("ratrace-live", MEMORY) do |dir|
      { [] => [2, /no PID or directory given/], %w[1 2] => [2, /one PID or directory/],
        ["1"] => [1, /process 1 is not being recorded/],
        [dir] => [1, /nobody records into/], ["/nothing/there"] => [1, /neither a PID nor a directory/],
        ["9" * 30] => [1, /is not being recorded/] }.each do |operands, (expected, why)|
        %w[top tail].each do |command|
          out, err, status = ratrace(command, *operands, env: { "RATRACE_LIVE_DIR" => dir })
          assert_equal ["", expected], [out, status]
          assert_match(/\Aratrace: #{command}: [^\n]*#{why}[^\n]*\n\z/, err)
        end
      end
      assert_equal 2, ratrace("top", "--interval", "0", "1").last
      assert_equal 2, ratrace("tail", "--lines", "-1", "1").last
    end
  end

  def test_a_process_does_not_look_at_itself
    Dir.mktmpdir("ratrace-live", MEMORY) do |dir|
      code = <<~RUBY
        require "ratrace/live"
        Ratrace.start(out_dir: ARGV[0])
        p Ratrace::Live.find(Process.pid.to_s)
        name = Dir.children(ENV["RATRACE_LIVE_DIR"]).grep(/live/).first
        begin
          Ratrace::Native.tap_open(nil, name, {})
        rescue Ratrace::Error => e
          puts e.message
        end
      RUBY
      out, err, status = run_ruby(File.join(dir, "out"), code: code, env: { "RATRACE_LIVE_DIR" => dir })

      assert_equal ["[]\na process cannot look at itself from outside\n", "", 0], [out, err, status.exitstatus]
    end
  end

  private

  def within(&block)
    Timeout.timeout(PATIENCE, &block)
  end

  def assert_complaint(why, dir)
    %w[top tail].each do |command|
      out, err, status = ratrace(command, dir, env: { "RATRACE_LIVE_DIR" => dir })

      assert_equal ["", 1], [out, status]
      assert_match(why, err.delete_prefix("ratrace: #{command}: "))
    end
  end

  # A process that holds the lock of a live file's owner, and its pid.
  def owner(path)
    code = <<~'RUBY'
      require "fcntl"
      file = File.open(ARGV[0], "r+")
      file.fcntl(Fcntl::F_SETLK, [Fcntl::F_WRLCK, 0, 0, 0, 0].pack("s!s!x4q!q!i!x4"))
      $stdout.sync = true
      puts "held"
      $stdin.read
    RUBY
    IO.popen([RbConfig.ruby, "-e", code, path], "r+") do |process|
      within { process.gets }
      yield process.pid
    end
  end

  # `top` on a terminal of its own, between two questions for the terminal's modes.
  def on_terminal(act)
    recorded do |process|
      process.tell("spin")
      script = "stty -g; \"$@\"; echo status=$?; stty -g; echo end"
      command = [RbConfig.ruby, EXE, "top", "--interval", "0.2", process.pid.to_s]
      PTY.spawn(process.env, "sh", "-c", script, "sh", *command) do |screen, keyboard, shell|
        text = +""
        acted = false
        Timeout.timeout(PATIENCE) do
          until text.match?(/^end\r?$/)
            text << screen.readpartial(65_536)
            next if acted || !text.include?("Work#step")

            acted = true
            act.call(keyboard, File.read("/proc/#{shell}/task/#{shell}/children").to_i)
          end
        end
        yield text, text.scan(/^(?:\h+:){10,}\h+/)
      ensure
        screen.close
        Process.wait(shell)
      end
    end
  end
end
