# frozen_string_literal: true

require "test_helper"
require "support/processes"
require "support/recordings"

# Scoped tracing: chosen methods are recorded, wherever and whenever they are loaded, and nothing else.
class TraceTest < Minitest::Test
  parallelize_me!

  include Recordings
  include Processes

  # The programs run in this folder; what they load lies in app/.
  def work_dir
    @work_dir ||= Dir.mktmpdir("ratrace-work")
  end

  def teardown
    super
    FileUtils.rm_rf(@work_dir) if @work_dir
  end

  def file(name, code)
    path = File.join(work_dir, name)
    FileUtils.mkdir_p(File.dirname(path))
    File.write(path, code)
    path
  end

  PRELUDE = <<~RUBY
    require "ratrace"
    OUT = ARGV.first
    def trace(**options) = Ratrace.start(out_dir: OUT, slot_size: 65_536, **options)
  RUBY

  # What `code` prints; it has started by itself.
  def run_traced(code, **options)
    run_well("#{PRELUDE}#{code}\nRatrace.stop\n", out_dir, chdir: work_dir, **options)
  end

  # { "Foo#bar" => calls }
  def calls
    events = events_in(out_dir).select { |event| event["type"] == "call" }
    events.map { |event| "#{event["owner"]}#{event["kind"] == "singleton" ? "." : "#"}#{event["method"]}" }.tally
  end

  CAR = <<~RUBY
    class Car
      def drive = wheels.sum { |wheel| turn(wheel) }
      def wheels = [1, 2]
      def self.build = new
      define_method(:honk) { |times = 1| times }
      attr_reader :seats
      private def turn(wheel) = wheel
      module Tools
        def tool = 1
        module_function :tool
      end
    end
  RUBY
  ALL_OF_CAR = { "Car.build" => 1, "Car#drive" => 1, "Car#wheels" => 1, "Car#turn" => 2, "Car#honk" => 1,
                 "Car::Tools.tool" => 1 }.freeze
  USE_CAR = "car = Car.build; car.drive; car.honk; car.seats; Car::Tools.tool; require 'set'; Set.new([1]).map(&:to_s)\n"

  # ---------------------------------------------------------------- which methods

  def test_methods_of_files_loaded_before_the_start_are_recorded_and_nothing_else
    file("app/car.rb", CAR)
    run_traced("require './app/car'\ntrace(trace: { files: 'app/**/*.rb' })\n#{USE_CAR}")
    assert_equal ALL_OF_CAR, calls
    assert_sound(out_dir)
  end

  def test_methods_of_files_loaded_after_the_start_are_recorded_and_nothing_else
    file("app/car.rb", CAR)
    run_traced("trace(trace: { files: 'app/**/*.rb' })\nrequire './app/car'\n#{USE_CAR}")
    assert_equal ALL_OF_CAR, calls
  end

  def test_methods_are_recorded_that_a_file_defines_after_the_start_in_its_middle
    file("app/car.rb", "class Car\n  def early = 1\n  START.call\n  def late = 2\n  def self.also = 3\nend\n" \
                       "class Bus\n  define_method(:bus) { 4 }\nend\n")
    run_traced("START = -> { trace(trace: { files: 'app/*' }) }\nrequire './app/car'\n" \
               "Car.new.early; Car.new.late; Car.also; Bus.new.bus")
    assert_equal({ "Car#early" => 1, "Car#late" => 1, "Car.also" => 1, "Bus#bus" => 1 }, calls)
  end

  def test_a_def_in_a_block_that_runs_after_the_start_is_recorded
    file("app/parts.rb", "MAKE = proc { def made = 1 }\n")
    run_traced("require './app/parts'\ntrace(trace: { files: 'app/*' })\nClass.new(&MAKE).new.made")
    assert_equal 1, calls.values.sum
  end

  def test_methods_by_name_are_recorded_whether_loaded_before_or_after
    file("app/car.rb", CAR)
    names = %w[Car#drive Car.bu* *#honk]
    wanted = ALL_OF_CAR.slice("Car#drive", "Car.build", "Car#honk")
    [true, false].each do |before|
      start = "trace(trace: { methods: #{names} })"
      load = "require './app/car'"
      run_traced([*(before ? [load, start] : [start, load]), USE_CAR].join("\n"))
      assert_equal wanted, calls, "loaded #{before ? "before" : "after"} the start"
      FileUtils.rm_f(segments)
    end
  end

  def test_the_environment_says_the_same
    file("app/car.rb", CAR)
    run_traced("trace\nrequire './app/car'\n#{USE_CAR}", env: { "RATRACE_TRACE" => "Car#drive,app/none.rb" })
    assert_equal({ "Car#drive" => 1 }, calls)
  end

  def test_a_reopened_class_has_the_methods_of_the_files_that_match
    file("app/car.rb", CAR)
    file("lib/patch.rb", "class Car\n  def patched = 1\n  def wheels = [1]\nend")
    run_traced("trace(trace: { files: 'app/**/*.rb' })\nrequire './app/car'\n$VERBOSE = nil\nrequire './lib/patch'\n" \
               "Car.new.drive; Car.new.patched")
    assert_equal({ "Car#drive" => 1, "Car#turn" => 1 }, calls)
  end

  def test_code_loaded_again_is_recorded_again_and_once
    path = file("app/car.rb", CAR)
    run_traced("trace(trace: { files: 'app/**/*.rb' })\n3.times do\n  $VERBOSE = nil; load #{path.inspect}\n  #{USE_CAR}end")
    assert_equal ALL_OF_CAR.transform_values { |count| count * 3 }, calls
  end

  def test_a_class_thrown_away_and_loaded_anew_is_recorded
    path = file("app/car.rb", CAR)
    run_traced("trace(trace: { files: 'app/**/*.rb' })\n3.times do\n  load #{path.inspect}\n  #{USE_CAR}" \
               "  Object.send(:remove_const, :Car); GC.start\nend")
    assert_equal ALL_OF_CAR.transform_values { |count| count * 3 }, calls
  end

  def test_code_from_a_compiled_cache_is_recorded
    path = file("app/car.rb", CAR)
    run_traced(<<~RUBY)
      binary = RubyVM::InstructionSequence.compile_file(#{path.inspect}).to_binary
      trace(trace: { files: 'app/**/*.rb' })
      RubyVM::InstructionSequence.load_from_binary(binary).eval
      #{USE_CAR}
    RUBY
    assert_equal ALL_OF_CAR, calls
  end

  # As bootsnap does.
  def test_code_from_a_cache_behind_require_is_recorded_once
    file("app/car.rb", CAR)
    run_traced(<<~RUBY)
      def (RubyVM::InstructionSequence).load_iseq(path) = load_from_binary(compile_file(path).to_binary)
      trace(trace: { files: 'app/**/*.rb' })
      require "./app/car"
      #{USE_CAR}
    RUBY
    assert_equal ALL_OF_CAR, calls
  end

  def test_text_evaluated_in_a_class_body_is_traced
    file("app/car.rb", %(class Car\n  eval("def made = 1", nil, __FILE__, 2)\nend\n))
    out = run_traced(<<~RUBY)
      trace(trace: { files: "app/*" })
      require "./app/car"
      Car.new.made
      p Ratrace.stats[:trace].values_at(:failures, :failure)
    RUBY
    assert_equal "[0, nil]\n", out
    assert_equal({ "Car#made" => 1 }, calls)
  end

  def test_code_evaluated_from_text_counts_by_the_file_it_names
    run_traced(<<~RUBY)
      trace(trace: { files: "app/*" })
      class Car; end
      Car.class_eval("def written = 1", "app/car.rb", 1)
      Car.class_eval("def elsewhere = 1", "lib/car.rb", 1)
      Car.new.written; Car.new.elsewhere
    RUBY
    assert_equal({ "Car#written" => 1 }, calls)
  end

  def test_refinements_and_singletons_of_objects_are_recorded
    file("app/extra.rb", "module Extra\n  refine(String) { def shout = upcase }\nend\nusing Extra\nOBJECT = Object.new\n" \
                         "def OBJECT.own = 'a'.shout\n")
    run_traced("trace(trace: { files: 'app/*' })\nrequire './app/extra'\nOBJECT.own")
    assert_equal %w[own shout], events_in(out_dir).select { |event| event["type"] == "call" }.map { |event| event["method"] }
  end

  def test_a_removed_method_does_no_harm
    file("app/car.rb", CAR)
    run_traced("trace(trace: { files: 'app/*' })\nrequire './app/car'\ncar = Car.new; car.honk; car.wheels\n" \
               "Car.remove_method(:honk, :drive); Car.undef_method(:wheels); GC.start; car.respond_to?(:honk)")
    assert_equal({ "Car#honk" => 1, "Car#wheels" => 1 }, calls)
  end

  def test_excluded_files_are_not_traced
    file("app/car.rb", CAR)
    file("app/bus.rb", "class Bus\n  def go = 1\nend")
    run_traced("trace(trace: { files: 'app/*' }, exclude: 'app/car.rb')\nrequire './app/car'\nrequire './app/bus'\n" \
               "#{USE_CAR}Bus.new.go\np Ratrace.stats[:trace][:sites]")
    assert_equal({ "Bus#go" => 1 }, calls)
  end

  # ---------------------------------------------------------------- what cannot be

  def test_a_function_in_c_asked_for_by_its_name_is_refused
    { "String#upcase" => "written in C", "Exception.exception" => "written in C", "Point#x" => "an attribute" }.each do |name, why|
      code = "Point = Class.new { attr_reader :x }\nbegin\n  trace(trace: { methods: #{name.inspect} })\n" \
             "rescue Ratrace::ConfigurationError => e\n  puts e.message\nend"
      next if name == "Exception.exception" && Exception.method(:exception).source_location

      assert_equal "trace methods: #{name} cannot be traced: it is #{why}, not a Ruby method; trace what calls it\n",
                   run_traced(code)
    end
    assert_empty segments
  end

  def test_what_cannot_be_traced_and_what_was_not_found_is_told
    file("app/car.rb", CAR)
    out = run_traced("trace(trace: { files: 'app/*', methods: ['Car#drive', 'Bus#go'] })\nrequire './app/car'\n" \
                     "p Ratrace.stats[:trace].slice(:untraceable, :not_found, :failures, :sites)")
    assert_equal({ untraceable: ["Car#seats (an attribute)"], not_found: ["Bus#go"], failures: 0, sites: 6 }, eval(out))
  end

  def test_c_calls_beside_it_are_refused
    out = run_traced("begin\n  trace(trace: { files: 'a' }, c_calls: true)\nrescue Ratrace::ConfigurationError => e\n" \
                     "  puts e.message\nend")
    assert_match(/\Ac_calls: true.*functions written in C cannot be traced one by one/, out)
  end

  # ---------------------------------------------------------------- stacks

  def test_stacks_are_those_of_the_methods_traced
    file("app/car.rb", "class Car\n  def drive = Road.new.under { go }\n  def go = 1\nend")
    file("lib/road.rb", "class Road\n  def under = between { yield }\n  def between = yield\nend")
    run_traced("require './lib/road'\ntrace(trace: { files: 'app/*' })\nrequire './app/car'\nCar.new.drive")
    assert_equal %w[snapshot call call return return cost], types
    assert_sound(out_dir)
  end

  def types
    events_in(out_dir).map { |event| event["type"] }
  end

  def test_exceptions_through_methods_that_are_not_traced_end_those_that_are
    file("app/car.rb", "class Car\n  def drive = Road.new.under { crash }\n  def crash = raise('x')\n  def safe\n" \
                       "    drive\n  rescue RuntimeError\n    ok\n  end\n  def ok = 1\nend")
    file("lib/road.rb", "class Road\n  def under = [1].each { |_| yield }\nend")
    run_traced("require './lib/road'\ntrace(trace: { files: 'app/*' })\nrequire './app/car'\nCar.new.safe; Car.new.ok")
    assert_equal %w[snapshot call call call return return call return return call return cost], types
  end

  def test_a_frame_open_at_start_is_an_unmatched_return
    file("app/car.rb", "class Car\n  def outer\n    START.call\n    inner\n  end\n  def inner = 1\nend")
    run_traced("require './app/car'\nSTART = -> { trace(trace: { files: 'app/*' }) }\nCar.new.outer; Car.new.inner")
    assert_equal %w[snapshot call return unmatched call return cost], types
    assert_sound(out_dir)
  end

  def test_threads_and_fibers_have_stacks_of_their_own
    file("app/car.rb", "class Car\n  def drive = stop\n  def stop = Fiber.yield\n  def pass = Thread.pass\nend")
    run_traced(<<~RUBY)
      trace(trace: { files: "app/*" })
      require "./app/car"
      fibers = Array.new(5) { Fiber.new { Car.new.drive } }
      2.times { fibers.each(&:resume) }
      Array.new(4) { Thread.new { 100.times { Car.new.pass } } }.each(&:join)
      GC.start
      100.times { Fiber.new { Car.new.drive }.resume } # abandoned
      GC.start
    RUBY
    assert_equal({ "Car#drive" => 105, "Car#stop" => 105, "Car#pass" => 400 }, calls)
    assert_sound(out_dir)
  end

  def test_children_have_recordings_of_their_own
    file("app/car.rb", "class Car\n  def child = 1\n  def parent = 1\n  def around = yield\nend")
    run_traced(<<~RUBY)
      trace(trace: { files: "app/*" })
      require "./app/car"
      car = Car.new
      2.times { car.parent }
      car.around do
        pid = fork { 3.times { car.child }; Ratrace.stop }
        Process.wait(pid)
        exit!(1) unless $?.success?
      end
      car.parent
    RUBY
    assert_equal({ "Car#parent" => 3, "Car#around" => 1, "Car#child" => 3 }, calls)
    assert_equal 2, account_of(out_dir)[:sessions].size
    assert_sound(out_dir)
  end

  def test_it_can_be_stopped_and_started_again
    file("app/car.rb", CAR)
    run_traced(<<~RUBY)
      require "./app/car"
      3.times do |round|
        trace(trace: { files: "app/**/*.rb" })
        #{USE_CAR}
        Ratrace.stop
        #{USE_CAR}
      end
    RUBY
    assert_equal ALL_OF_CAR.transform_values { |count| count * 3 }, calls
    assert_sound(out_dir)
  end

  def test_after_a_stop_that_failed_calls_are_told_once
    file("app/car.rb", CAR)
    run_traced(<<~RUBY)
      require "fileutils"
      require "./app/car"
      trace(trace: { files: "app/**/*.rb" })
      Car.build && Ratrace.flush
      FileUtils.rm_rf(OUT)
      File.write(OUT, "in its place")
      begin
        exit!(1) if Ratrace.stop
      rescue Ratrace::Error
        File.delete(OUT)
        trace(trace: { files: "app/**/*.rb" })
      end
      #{USE_CAR}
    RUBY
    assert_equal ALL_OF_CAR, calls
    assert_sound(out_dir)
  end

  def test_a_thread_that_is_killed_while_methods_are_sought_leaves_no_recording
    file("app/car.rb", CAR)
    out = run_traced(<<~RUBY)
      require "./app/car"
      SEEKING = Queue.new
      Ratrace::Targets.prepend(Module.new { def scan_procs = super && SEEKING.push(true) && sleep })
      thread = Thread.new { trace(trace: { files: "app/**/*.rb" }) }
      SEEKING.pop
      thread.kill.join
      p Ratrace.recording?, ObjectSpace.each_object(TracePoint).count { |point| point.enabled? && Ratrace::Native.site_ours?(point) }
    RUBY
    assert_equal "false\n0\n", out
  end

  # ---------------------------------------------------------------- the host

  def test_another_tool_on_the_same_methods_does_no_harm
    file("app/car.rb", CAR)
    run_traced(<<~RUBY)
      require "./app/car"
      car = Car.new
      trace(trace: { files: "app/**/*.rb" })
      seen = 0
      points = %i[honk wheels].map { |name| TracePoint.new(:call) { seen += 1 }.tap { |point| point.enable(target: car.method(name)) } }
      car.honk; car.wheels
      points.each(&:disable)
      Ratrace.stop
      car.honk; car.wheels
      exit!(1) unless seen == 2
    RUBY
    assert_equal 1, calls["Car#wheels"]
  end

  def test_no_hook_of_the_whole_process_is_installed
    file("app/car.rb", CAR)
    out = run_traced(<<~RUBY)
      require "./app/car"
      def untraced = 1
      code = RubyVM::InstructionSequence.of(method(:untraced))
      before = code.disasm
      trace(trace: { files: "app/**/*.rb" })
      #{USE_CAR}
      untraced
      p code.disasm == before, Ratrace.stats.slice(:scoped, :blind)
    RUBY
    assert_equal "true\n{:scoped=>true, :blind=>nil}\n", out.gsub(/scoped: (\w+), blind: (\w+)/, ':scoped=>\1, :blind=>\2')
  end

  def test_classes_that_lie_about_themselves_are_no_trouble
    file("app/liar.rb", <<~RUBY)
      class Liar
        def self.name = raise("no")
        def self.instance_methods(*) = raise("no")
        def self.instance_method(*) = raise("no")
        def self.hash = raise("no")
        def self.==(_) = raise("no")
        def self.frozen? = raise("no")
        def self.singleton_class? = raise("no")
        def lie = 1
        define_method(:defined_lie) { 2 }
      end
      class Bare < BasicObject
        def bare = 1
      end
    RUBY
    use = "Liar.new.lie; Liar.new.defined_lie; Bare.new.bare; p Ratrace.stats[:trace][:failures]"
    start = "trace(trace: { files: 'app/*', methods: 'Nobody#no*' })"
    ["#{start}\nrequire './app/liar'", "require './app/liar'\n#{start}"].each do |begin_with|
      assert_equal "0\n", run_traced("#{begin_with}\n#{use}")
      assert_equal({ "Liar#lie" => 1, "Liar#defined_lie" => 1, "Bare#bare" => 1 }, calls.reject { |name, _| name.start_with?("Liar.") })
      FileUtils.rm_f(segments)
    end
  end

  def test_a_frozen_class_is_traced_once
    file("app/car.rb", "class Car\n  def drive = 1\n  define_method(:honk) { 1 }\nend\nCar.freeze\n")
    run_traced("require './app/car'\n2.times do\n  trace(trace: { files: 'app/*' })\n  Car.new.drive; Car.new.honk\n" \
               "  Ratrace.stop\nend")
    assert_equal({ "Car#drive" => 2, "Car#honk" => 2 }, calls)
  end
end
