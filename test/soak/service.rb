#!/usr/bin/env ruby
# frozen_string_literal: true

# A service that is recorded and one that is not, beside each other, under the same load:
#
#   test/soak/service.rb [SECONDS]     default 600
#
# Clustered Puma with a Sinatra application; RUBYOPT=-rratrace/auto is all that differs. Each request goes to both, in
# turns first to the one and to the other. Meanwhile workers are restarted in phases and killed. Fails when an answer
# differs or is missing, when memory or descriptors of the recorded one grow with time, when a server does not end as
# the other does, or when the recording does not add up. Latencies are told as ratios and decide nothing.

require "fileutils"
require "net/http"
require "rbconfig"
require "tmpdir"

TOP = File.expand_path("../..", __dir__)
$LOAD_PATH.unshift(File.join(TOP, "lib"))
require "ratrace/recording"

# A Puma cluster in a process group of its own.
class Service
  FOLDER = File.join(__dir__, "service")
  PATIENCE = 90

  attr_reader :port, :pid

  def initialize(folder, port, env)
    @port = port
    @log = File.join(folder, "server-#{port}.log")
    @pid = spawn({ "PORT" => port.to_s, "RACK_ENV" => "production", **env }, RbConfig.ruby, "-S", "puma",
                 "-C", "puma.rb", "config.ru", chdir: FOLDER, pgroup: true, %i[out err] => @log)
    settle
  end

  def get(path)
    from = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    answer = Net::HTTP.start("127.0.0.1", port, read_timeout: PATIENCE) { |http| http.get(path) }
    [[answer.code, answer.body], Process.clock_gettime(Process::CLOCK_MONOTONIC) - from]
  end

  def workers
    Dir["/proc/[0-9]*/stat"].filter_map do |path|
      pid, parent = File.read(path).match(/\A(\d+) \(.*\) \S (\d+)/m)&.captures&.map(&:to_i)
      pid if parent == @pid
    rescue Errno::ENOENT, Errno::ESRCH
      nil
    end
  end

  # Bytes of memory and descriptors of the master and its workers.
  def sizes
    [@pid, *workers].filter_map do |pid|
      [File.read("/proc/#{pid}/statm").split[1].to_i * 4096, Dir.children("/proc/#{pid}/fd").size]
    rescue Errno::ENOENT, Errno::ESRCH, Errno::EACCES
      nil
    end.transpose.map(&:sum)
  end

  def restart_in_phases
    before = workers
    Process.kill(:USR1, @pid)
    wait("all workers are new") { workers.size == 2 && (workers & before).empty? }
    settle
  end

  def lose_a_worker
    before = workers
    Process.kill(:KILL, before.first)
    wait("a worker is new") { workers.size == 2 && !workers.include?(before.first) }
    settle
  end

  # @return [Process::Status]
  def stop
    Process.kill(:TERM, @pid)
    wait("the server has ended") { Process.wait(@pid, Process::WNOHANG) }
    $?
  end

  def log = File.read(@log)

  private

  # Until both workers answer: as many answers in a row as make it likely.
  def settle
    wait("it answers") do
      workers.size == 2 && 20.times { get("/") }
    rescue SystemCallError, EOFError
      false
    end
  end

  def wait(what)
    until yield
      @waited_from ||= Process.clock_gettime(Process::CLOCK_MONOTONIC)
      abort "server on #{port}: never came that #{what}\n#{log}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) - @waited_from > PATIENCE
      sleep 0.1
    end
    @waited_from = nil
  end
end

# The load, and what it finds.
class Soak
  PATHS = %w[/ /orders/%d /orders/%d /pages/%d /pages/%d /parallel/%d /refused/%d].freeze
  GROWTH = 24 * 1024 * 1024 # bytes that the recorded cluster of three may grow more than the other

  def initialize(seconds)
    @seconds = seconds
    @folder = Dir.mktmpdir("ratrace-soak")
    @out = File.join(@folder, "recording")
    @random = Random.new(@seed = Integer(ENV.fetch("SOAK_SEED", Random.new_seed % 1_000_000)))
    @times = { plain: [], recorded: [] }
    @sizes = { plain: [], recorded: [] }
    @faults = []
    @disturbances = 0
    @processes = 3 # that the recorded server had: the master and its workers
  end

  def run
    puts "soak of a service: #{@seconds} s, SOAK_SEED=#{@seed}"
    @services = { plain: Service.new(@folder, free_port, {}),
                  recorded: Service.new(@folder, free_port, recording_env) }
    load_until(now + @seconds)
    finish
    report
    FileUtils.rm_rf(@folder) if @faults.empty?
    @faults.empty?
  end

  private

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  def recording_env
    { "RUBYOPT" => "-I#{File.join(TOP, "lib")} -rratrace/auto", "RATRACE_OUT_DIR" => @out, "RATRACE_PERIOD" => "0.5",
      "RATRACE_CONTROL" => "0" }
  end

  def free_port
    TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
  end

  def load_until(ending)
    disturb_at = now + @seconds / 8.0
    measure_at = now
    until now > ending
      request
      if now > measure_at
        @services.each { |name, service| @sizes[name] << service.sizes }
        measure_at = now + @seconds / 60.0
      end
      next if now < disturb_at || now > ending - @seconds / 16.0

      disturb
      disturb_at = now + @seconds / 8.0
    end
  end

  def request
    template = @random.rand(400).zero? ? "/stress/%d" : PATHS.sample(random: @random)
    path = template.sub("%d", @random.rand(1000).to_s)
    answers = @services.keys.shuffle(random: @random).to_h do |name|
      answer, time = @services[name].get(path)
      @times[name] << time unless template.start_with?("/stress")
      [name, answer]
    end
    @faults << "#{path}: #{answers}" unless answers[:plain] == answers[:recorded]
  rescue SystemCallError, EOFError, Timeout::Error => e
    @faults << "#{path}: #{e.class}: #{e.message}"
  end

  def disturb
    @disturbances += 1
    @services.each_value(&(@disturbances.odd? ? :restart_in_phases : :lose_a_worker))
    @processes += @disturbances.odd? ? 2 : 1
  end

  def finish
    statuses = @services.transform_values(&:stop)
    @faults << "ends: #{statuses}" unless statuses.values.map(&:to_s).map { |text| text.sub(/pid \d+/, "") }.uniq.size == 1
    @faults << "the recorded server said:\n#{@services[:recorded].log}" if @services[:recorded].log.match?(/ratrace/i)
    system(RbConfig.ruby, File.join(TOP, "exe/ratrace"), "recover", @out, out: File::NULL)
    judge_recording
    judge_growth(0, "memory", GROWTH)
    judge_growth(1, "descriptors", 6)
  end

  def judge_recording
    sessions = Ratrace::Recording.new(@out).account[:sessions]
    lanes = sessions.flat_map { |session| session[:lanes] }
    @events = lanes.sum { |lane| lane[:decoded] }
    @streams = sessions.size
    @faults << "a lane does not add up" unless lanes.all? { |lane| lane[:balanced] }
    @faults << "events were lost" unless lanes.all? { |lane| lane[:lost].values.sum.zero? }
    @faults << "#{@streams} streams of #{@processes} processes" unless @streams == @processes
    @faults << "only #{@events} events" if @events < @times[:recorded].size
  end

  # The middle third against the last: what grows for ever has grown by then.
  def judge_growth(column, what, allowed)
    grown = @sizes.transform_values do |samples|
      thirds = samples.map { |sample| sample[column] }.each_slice((samples.size / 3.0).ceil).to_a
      middle(thirds.last) - middle(thirds[1])
    end
    puts "  #{what}: #{@sizes[:recorded].last[column]} at last; grown by #{grown[:recorded]}, without recording by #{grown[:plain]}"
    @faults << "#{what} grew by #{grown[:recorded]}" if grown[:recorded] > [grown[:plain], 0].max + allowed
  end

  def middle(numbers) = numbers.sort[numbers.size / 2]

  def report
    puts "  #{@times[:recorded].size} requests to each, #{@disturbances} restarts or losses of workers, " \
         "#{@streams} streams, #{@events} events"
    [50, 99].each do |part|
      plain, recorded = @times.values_at(:plain, :recorded).map { |times| times.sort[times.size * part / 100] * 1000 }
      puts format("  p%d: %.2f ms recorded, %.2f ms not, ratio %.2f", part, recorded, plain, recorded / plain)
    end
    puts @faults.empty? ? "soak of a service: sound" : "soak of a service: #{@faults.size} faults in #{@folder}", *@faults.first(10)
  end
end

exit Soak.new(Integer(ARGV.fetch(0, "600"))).run
