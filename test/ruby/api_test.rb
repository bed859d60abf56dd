# frozen_string_literal: true

require "test_helper"
require "support/recordings"
require "weakref"

# The methods of Ratrace, in this very process.
class ApiTest < Minitest::Test
  include Recordings

  def leaf
    1
  end

  def twice
    leaf + leaf
  end

  def deep(levels, &block)
    levels.zero? ? block.call : deep(levels - 1, &block)
  end

  OURS = %w[leaf twice deep].freeze

  def ours(*paths)
    calls_in(*paths, of: OURS)
  end

  # ---------------------------------------------------------------- start and stop

  def test_what_runs_between_start_and_stop_is_recorded
    leaf
    assert Ratrace.start(out_dir: out_dir)
    twice
    path = Ratrace.stop
    leaf

    assert_equal({ "leaf" => 2, "twice" => 1 }, ours(path))
    assert_sound(path)
  end

  def test_stop_answers_with_the_one_segment_there_is
    Ratrace.start(out_dir: out_dir)
    path = Ratrace.stop

    assert_equal [path], segments
    assert_equal ".ratrace", File.extname(path)
    assert_equal 0o600, File.stat(path).mode & 0o777
  end

  def test_stop_without_a_recording_answers_nil
    assert_nil Ratrace.stop
  end

  def test_recording_says_whether_it_is_running
    refute_predicate Ratrace, :recording?
    Ratrace.start(out_dir: out_dir)
    assert_predicate Ratrace, :recording?
    Ratrace.stop
    refute_predicate Ratrace, :recording?
  end

  def test_a_second_start_is_refused_and_changes_nothing
    Ratrace.start(out_dir: out_dir, slot_size: 65_536)
    Ratrace.flush
    before = Ratrace.stats.slice(:part, :lanes, :clock, :fence)
    other = File.join(out_dir, "other")

    error = assert_raises(Ratrace::Error) { Ratrace.start(out_dir: other, c_calls: true) }

    assert_match(/running/, error.message)
    assert_match(/Ratrace\.stop/, error.message)
    assert_equal before, Ratrace.stats.slice(:part, :lanes, :clock, :fence)
    refute_path_exists other
    leaf
    path = Ratrace.stop
    assert_equal({ "leaf" => 1 }, ours(path))
    assert_empty events_in(path).select { |event| event["type"] == "c_call" }
  end

  def test_two_recordings_one_after_the_other_know_nothing_of_each_other
    counts = 2.times.map do
      Ratrace.start(out_dir: out_dir, slot_size: 16_384)
      5000.times { leaf }
      10.times { Thread.new { leaf }.join }
      stats = Ratrace.stats.slice(:unwound, :unmatched, :repaired, :frames, :names, :folded, :lost_events)
      [Ratrace.stop, stats]
    end

    assert_equal counts[0][1], counts[1][1]
    counts.each do |path, _stats|
      assert_equal 1, account_of(path)[:sessions].size
      assert(account_of(path)[:sessions].all? { |session| session[:lanes].all? { |lane| lane[:balanced] } })
    end
  end

  def test_a_recording_stopped_inside_a_call_ends_the_open_frames
    Ratrace.start(out_dir: out_dir)
    path = deep(2) { Ratrace.stop }

    assert_equal({ "deep" => 3 }, ours(path))
    assert_equal(["stop"], events_in(path).select { |event| event["type"] == "end" }.map { |event| event["reason"] })
    assert_sound(path)
  end

  def test_frames_open_at_start_are_a_base_and_return
    deep(2) do
      Ratrace.start(out_dir: out_dir)
      leaf
    end
    twice
    path = Ratrace.stop

    events = events_in(path)
    first = events.find { |event| event["type"] == "snapshot" }
    assert_equal "start", first["reason"]
    assert_equal 3, first["frames"].count { |frame| frame["base"] && frame["method"] == "deep" }
    assert_equal({ "leaf" => 3, "twice" => 1 }, ours(path))
    assert_sound(path)
  end

  def test_a_base_is_left_frame_by_frame
    deep(2) { Ratrace.start(out_dir: out_dir) }
    path = Ratrace.stop

    returns = events_in(path).count { |event| event["type"] == "return" }
    assert_operator returns, :>=, 3
    assert_sound(path)
  end

  def test_a_stop_in_one_method_and_a_start_in_another_leave_two_sound_recordings
    Ratrace.start(out_dir: out_dir)
    first = deep(3) { Ratrace.stop }
    deep(2) { Ratrace.start(out_dir: out_dir) }
    leaf
    second = Ratrace.stop

    assert_equal({ "deep" => 4 }, ours(first))
    assert_equal({ "leaf" => 1 }, ours(second))
    assert_sound(first)
    assert_sound(second)
  end

  # ---------------------------------------------------------------- flush

  def test_flush_without_a_recording_is_false
    assert_equal false, Ratrace.flush
  end

  def test_what_was_before_a_flush_is_on_disk_after_it
    Ratrace.start(out_dir: out_dir, period: 3600)
    1000.times { leaf }
    assert_equal true, Ratrace.flush

    part = Ratrace.stats[:part]
    assert_equal [part], segments
    assert_equal({ "leaf" => 1000 }, ours(part))
  end

  def test_each_flush_adds_what_came_since_the_last
    Ratrace.start(out_dir: out_dir, period: 3600)
    (1..5).each do |round|
      leaf
      Ratrace.flush
      assert_equal({ "leaf" => round }, ours(Ratrace.stats[:part]))
    end
  end

  def test_many_threads_may_flush_at_once
    Ratrace.start(out_dir: out_dir, period: 3600)
    within do
      8.times.map { Thread.new { 10.times { leaf && Ratrace.flush } } }.each(&:join)
    end
    path = Ratrace.stop

    assert_equal({ "leaf" => 80 }, ours(path))
    assert_sound(path)
  end

  def test_a_stop_waits_for_threads_that_flush
    10.times do
      Ratrace.start(out_dir: out_dir, slot_size: 16_384)
      threads = 4.times.map { Thread.new { 20.times { Ratrace.flush } } }
      within { Ratrace.stop }
      within { threads.each(&:join) } # an error in one is raised here
    end
  end

  # Else a process that ends meanwhile leaves its end to `ratrace recover`.
  def test_a_stop_waits_for_the_thread_that_is_stopping
    3.times do
      Ratrace.start(out_dir: out_dir, period: 3600)
      250_000.times { leaf } # something to write at the end
      paths = within { Array.new(4) { Thread.new { [Ratrace.stop, Dir.glob("*.part", base: out_dir)] } }.map(&:value) }

      assert_equal 1, paths.count { |path, _| path }
      assert_empty paths.flat_map(&:last)
    end
  end

  def test_under_gc_stress_the_program_goes_on
    Ratrace.start(out_dir: out_dir)
    begin
      GC.stress = true
      within { 20.times { leaf && Object.new } }
    ensure
      GC.stress = false
    end
    assert_equal({ "leaf" => 20 }, ours(Ratrace.stop))
  end

  def test_a_stop_while_threads_run_leaves_a_sound_recording
    Ratrace.start(out_dir: out_dir)
    started = Queue.new
    stop = false
    threads = 4.times.map do
      Thread.new do
        started << 1
        leaf && Thread.pass until stop
      end
    end
    4.times { started.pop }
    path = within { Ratrace.stop }
    stop = true
    threads.each(&:join)

    assert_operator ours(path).fetch("leaf"), :>=, 1
    assert_sound(path)
  end

  # ---------------------------------------------------------------- interrupts

  class Interruption < StandardError; end

  # Run the block in a thread where an exception waits for the next blocking call.
  def with_interrupt_due
    sent = ready = false
    thread = Thread.new do
      Thread.current.report_on_exception = false
      result = nil
      begin
        Thread.handle_interrupt(Interruption => :on_blocking) do
          ready = true
          Thread.pass until sent
          result = yield
        end
      rescue Interruption
        [result, :interrupted]
      end
    end
    Thread.pass until ready
    thread.raise(Interruption)
    sent = true
    within { thread.value }
  end

  def test_an_interrupt_that_is_due_does_not_tear_a_start
    options = Ratrace::Configuration.new({ out_dir: out_dir }).to_native
    assert_equal [true, :interrupted], with_interrupt_due { Ratrace::Native.start(options) }
    assert_predicate Ratrace, :recording?
    leaf
    assert_equal({ "leaf" => 1 }, ours(Ratrace.stop))
    assert Ratrace.start(out_dir: out_dir)
  end

  def test_an_interrupt_that_is_due_does_not_tear_a_stop
    Ratrace.start(out_dir: out_dir)
    leaf
    path, interrupted = with_interrupt_due { Ratrace.stop }

    assert_equal :interrupted, interrupted
    assert_equal [path], segments
    assert_equal({ "leaf" => 1 }, ours(path))
  end

  # ---------------------------------------------------------------- record

  def test_record_answers_what_its_block_does
    assert_equal(2, Ratrace.record(out_dir: out_dir) { twice })
    assert_equal({ "leaf" => 2, "twice" => 1 }, ours(out_dir))
  end

  def test_record_stops_when_its_block_raises
    assert_raises(ZeroDivisionError) { Ratrace.record(out_dir: out_dir) { leaf / 0 } }
    assert_recorded_one_leaf
  end

  def test_record_stops_when_its_block_throws
    catch(:done) { Ratrace.record(out_dir: out_dir) { leaf && throw(:done) } }
    assert_recorded_one_leaf
  end

  def test_record_stops_when_its_block_breaks
    seven = Ratrace.record(out_dir: out_dir) do
      leaf
      break 7
    end
    assert_equal 7, seven
    assert_recorded_one_leaf
  end

  def return_from_a_block
    Ratrace.record(out_dir: out_dir) do
      leaf
      return
    end
  end

  def test_record_stops_when_its_block_returns_from_the_method
    return_from_a_block
    assert_recorded_one_leaf
  end

  def test_record_stops_when_its_thread_is_killed
    started = Queue.new
    thread = Thread.new { Ratrace.record(out_dir: out_dir) { leaf && started.push(1) && Queue.new.pop } }
    started.pop
    within { thread.kill.join }
    assert_recorded_one_leaf
  end

  def assert_recorded_one_leaf
    refute_predicate Ratrace, :recording?
    assert_equal 1, ours(*segments).fetch("leaf")
    assert_sound(*segments)
  end

  def test_a_nested_record_is_refused_and_the_outer_goes_on
    Ratrace.record(out_dir: out_dir) do
      assert_raises(Ratrace::Error) { Ratrace.record(out_dir: out_dir) { flunk "ran" } }
      assert_predicate Ratrace, :recording?
      leaf
    end
    assert_recorded_one_leaf
  end

  # ---------------------------------------------------------------- options

  WRONG = {
    out_dir: [nil, 5, "", "a\0b", "a".encode("UTF-16LE"), "x" * 2000, "~nobody-of-this-name/x", [], __FILE__,
              BasicObject.new],
    period: [nil, "1", 0, -1, 0.009, 3601, Float::NAN, Float::INFINITY, 10**400, Complex(1, 0), Complex(1, 1), []],
    slot_size: [nil, "8388608", 8_388_608.0, 0, -4096, 4096, 16_385, 2**26, 2**70, Float::NAN],
    c_calls: [nil, 0, "yes", :true, []],
    include: [false, 5, "", "a\0", [nil], [5], [""], ["a\0"], "a*".encode("UTF-16LE"), "x" * 1025, ["*"] * 65, {}],
    exclude: [false, 5, "", "a\0", [nil], [5], [""], [[]], ["a\0"], ["*"] * 65, BasicObject.new]
  }.freeze

  WRONG.each do |option, values|
    define_method("test_a_wrong_#{option}_is_refused_by_name_value_and_remedy") do
      values.each do |value|
        error = assert_raises(Ratrace::ConfigurationError) { Ratrace.start(out_dir: out_dir, option => value) }
        shown = Object === value && value.inspect.length < 80 && !(Array === value) ? value.inspect : ""
        assert error.message.start_with?("#{option}: #{shown}"), error.message
        assert_match(/ is not allowed; use \S+/, error.message)
        assert_operator error.message.length, :<, 400
        refute_predicate Ratrace, :recording?
      end
      assert_empty segments
    end
  end

  def test_an_unknown_option_is_refused_with_those_there_are
    error = assert_raises(Ratrace::ConfigurationError) { Ratrace.start(out_dri: out_dir) }
    assert_match(/out_dri/, error.message)
    %w[out_dir period slot_size c_calls include exclude].each { |name| assert_includes error.message, name }
  end

  def test_every_sensible_value_is_taken
    [{ period: Rational(1, 2) }, { period: 3600 }, { period: 0.01 }, { slot_size: 16_384 }, { slot_size: 2**25 },
     { include: [] }, { include: "*" }, { exclude: nil }, { c_calls: true }].each do |options|
      assert Ratrace.start(out_dir: out_dir, **options)
      Ratrace.stop
    end
  end

  def test_a_pathname_is_a_directory
    require "pathname"
    Ratrace.start(out_dir: Pathname.new(out_dir))
    assert_equal out_dir, File.dirname(Ratrace.stop)
  end

  # ---------------------------------------------------------------- directories

  def test_missing_parents_are_made_for_the_owner_only
    deep = File.join(out_dir, "a/b/c")
    Ratrace.start(out_dir: deep)
    assert_equal deep, File.dirname(Ratrace.stop)
    assert_equal 0o700, File.stat(deep).mode & 0o777
  end

  def test_a_relative_directory_stays_where_it_was_at_start
    Dir.chdir(out_dir) { Ratrace.start(out_dir: "here") }
    leaf
    assert_equal File.realpath(File.join(out_dir, "here")), File.dirname(Ratrace.stop)
  end

  def test_a_directory_nobody_can_make_is_an_error_that_names_it
    error = assert_raises(Ratrace::Error) { Ratrace.start(out_dir: "/proc/nothing/here") }
    assert_match(%r{/proc/nothing/here}, error.message)
    refute_predicate Ratrace, :recording?
    assert Ratrace.start(out_dir: out_dir)
  end

  def test_a_directory_that_may_not_be_written_is_an_error_that_names_it
    skip "root may write anywhere" if Process.uid.zero?
    Dir.mkdir(closed = File.join(out_dir, "closed"), 0o500)
    error = assert_raises(Ratrace::Error) { Ratrace.start(out_dir: closed) }
    assert_includes error.message, closed
  end

  # ---------------------------------------------------------------- environment

  def test_the_directory_may_come_from_the_environment
    with_env("RATRACE_OUT_DIR" => out_dir) { Ratrace.start }
    assert_equal out_dir, File.dirname(Ratrace.stop)
  end

  def test_an_argument_beats_the_environment
    with_env("RATRACE_OUT_DIR" => "/proc/nothing") { Ratrace.start(out_dir: out_dir) }
    assert_equal out_dir, File.dirname(Ratrace.stop)
  end

  def test_where_it_is_disabled_nothing_starts_and_the_block_runs
    with_env("RATRACE_DISABLED" => "1") do
      assert_equal false, Ratrace.start(out_dir: out_dir)
      assert_equal(2, Ratrace.record(out_dir: out_dir) { twice })
      refute_predicate Ratrace, :recording?
    end
    assert_empty segments
  end

  def test_where_it_is_disabled_wrong_options_are_still_refused
    with_env("RATRACE_DISABLED" => "1") do
      assert_raises(Ratrace::ConfigurationError) { Ratrace.start(period: -1) }
    end
  end

  # ---------------------------------------------------------------- stats

  ALWAYS = %i[recording frame_path frame_path_refused audits audit_failures failure no_context].freeze
  RUNNING = %i[
    events dropped drops written_events lost_events unwound unmatched repaired switches chunks bytes raw_bytes segments
    flips giveups failed_writes last_failure encode_ns write_ns frames names contexts folded recovered_segments
    recovered_events lanes disabled_lanes clock fence live_file part
  ].freeze

  def test_stats_tell_the_same_fields_at_any_time
    assert_equal ALWAYS, Ratrace.stats.keys & ALWAYS
    refute Ratrace.stats[:recording]
    Ratrace.start(out_dir: out_dir)
    stats = Ratrace.stats
    assert_equal [], (ALWAYS + RUNNING) - stats.keys
    assert stats[:recording]
    assert_equal 1, stats[:lanes]
    assert_equal 0, stats[:disabled_lanes]
    assert_nil stats[:last_failure]
    Ratrace.stop
    refute Ratrace.stats[:recording]
  end

  def test_stats_count_what_the_files_hold
    Ratrace.start(out_dir: out_dir, slot_size: 16_384, period: 3600)
    20_000.times { leaf }
    Ratrace.flush
    stats = Ratrace.stats
    path = Ratrace.stop

    assert_operator stats[:events] + stats[:dropped], :>=, 40_000
    assert_equal stats[:dropped], stats[:drops].values.sum
    assert_equal 0, stats[:drops][:contended]
    lanes = account_of(path)[:sessions].flat_map { |session| session[:lanes] }
    assert(lanes.all? { |lane| lane[:balanced] })
    assert_operator lanes.sum { |lane| lane[:emitted] }, :>=, stats[:events] + stats[:dropped]
    assert_operator lanes.sum { |lane| lane[:decoded] }, :>=, stats[:written_events]
  end

  # 8 MiB hold 129 such names.
  def test_methods_beyond_the_dictionarys_bounds_are_recorded_as_such_and_counted
    names = Array.new(132) { |number| "a#{number}_".ljust(65_000, "x") }
    many = Class.new { names.each { |name| define_method(name) { 1 } } }.new
    Ratrace.start(out_dir: out_dir)
    names.each { |name| many.public_send(name) }
    folded = Ratrace.stats[:folded]
    path = Ratrace.stop

    calls = calls_in(path)
    assert_equal 3, folded
    assert_equal folded, calls.fetch("(dictionary full)")
    assert_equal 129, calls.slice(*names).values.sum
    assert_sound(path)
  end

  # ---------------------------------------------------------------- garbage

  def test_under_gc_stress_every_call_is_counted
    Ratrace.start(out_dir: out_dir)
    begin
      GC.stress = true
      10.times { twice }
      Thread.new { leaf }.join
      Fiber.new { leaf }.resume
    ensure
      GC.stress = false
    end
    path = Ratrace.stop

    assert_equal({ "leaf" => 22, "twice" => 10 }, ours(path))
    assert_sound(path)
  end

  def test_after_compaction_every_call_has_its_name
    skip "this Ruby does not compact" unless GC.respond_to?(:compact)
    Ratrace.start(out_dir: out_dir)
    20.times do
      twice
      GC.compact
      deep(3) { GC.compact }
    end
    path = Ratrace.stop

    assert_equal({ "leaf" => 40, "twice" => 20, "deep" => 80 }, ours(path))
    assert_sound(path)
  rescue NotImplementedError
    skip "this Ruby does not compact here"
  end

  def test_recorded_classes_and_objects_may_die
    Ratrace.start(out_dir: out_dir)
    refs = 100.times.map do
      object = Object.new
      def object.singleton_of_one = 1
      object.singleton_of_one
      Class.new { def in_a_nameless_class = 1 }.new.in_a_nameless_class
      WeakRef.new(object)
    end
    10.times { GC.start }
    alive = refs.count(&:weakref_alive?)
    path = Ratrace.stop

    assert_operator alive, :<, 20
    assert_equal({ "singleton_of_one" => 100, "in_a_nameless_class" => 100 },
                 calls_in(path, of: %w[singleton_of_one in_a_nameless_class]))
  end

  # ---------------------------------------------------------------- filters

  def load_methods(name)
    file = File.join(out_dir, "#{name}.rb")
    File.write(file, "module Filtered; def self.#{name} = block_given? ? yield : 1; end")
    load file
    file
  end

  def test_include_records_only_methods_of_matching_files
    file = load_methods("wanted")
    load_methods("unwanted")
    Ratrace.start(out_dir: File.join(out_dir, "trace"), include: file)
    Filtered.unwanted { Filtered.wanted { Filtered.unwanted { Filtered.wanted } } }
    leaf
    path = Ratrace.stop

    assert_equal({ "wanted" => 2 }, calls_in(path))
    assert_sound(path)
  end

  def test_exclude_beats_include
    load_methods("kept")
    out = load_methods("left_out")
    Ratrace.start(out_dir: File.join(out_dir, "trace"), include: "#{out_dir}/**/*.rb", exclude: [out])
    Filtered.left_out { Filtered.kept }
    path = Ratrace.stop

    assert_equal({ "kept" => 1 }, calls_in(path))
  end

  def test_a_relative_glob_starts_where_the_program_is
    load_methods("near")
    Dir.chdir(out_dir) { Ratrace.start(out_dir: "trace", include: "near.rb") }
    Filtered.near
    assert_equal({ "near" => 1 }, calls_in(Ratrace.stop))
  end

  def test_filtered_calls_of_threads_belong_to_their_threads
    file = load_methods("inner")
    load_methods("outer")
    Ratrace.start(out_dir: File.join(out_dir, "trace"), include: file)
    Filtered.inner
    10.times { Thread.new { Filtered.outer { Filtered.inner } }.join }
    path = Ratrace.stop

    contexts = events_in(path).select { |event| event["type"] == "call" }.map { |event| event["context"] }
    assert_equal 11, contexts.uniq.size
    assert_sound(path)
  end

  def test_a_threads_first_calls_belong_to_it
    Ratrace.start(out_dir: out_dir)
    leaf # its name is known from here on
    10.times { Thread.new { leaf }.join }
    path = Ratrace.stop

    contexts = events_in(path).select { |event| event["method"] == "leaf" }.map { |event| event["context"] }
    assert_equal 11, contexts.uniq.size
    assert_sound(path)
  end

  # ---------------------------------------------------------------- names

  module Odd
    Named = Class.new { def plain = 1 }
    class Liar
      class << self
        def name = raise("called by the recorder")
        alias to_s name
        alias inspect name
        alias hash name
      end

      def honest = 1
    end
    class Nothing < BasicObject
      def bare = 1
    end
    module Inner
      def self.on_a_module = 1
    end
  end

  def frames_of(path)
    events_in(path).select { |event| event["type"] == "call" }.to_h { |event| [event["method"], event] }
  end

  def test_odd_owners_have_plain_names
    nameless = Class.new { def in_nameless = 1 }
    Ratrace.start(out_dir: out_dir)
    Odd::Named.new.plain
    Odd::Liar.new.honest
    Odd::Nothing.new.bare
    Odd::Inner.on_a_module
    nameless.new.in_nameless
    object = Object.new
    def object.of_one = 1
    object.of_one
    frames = frames_of(Ratrace.stop)

    expected = {
      "plain" => ["ApiTest::Odd::Named", "instance"], "honest" => ["ApiTest::Odd::Liar", "instance"],
      "bare" => ["ApiTest::Odd::Nothing", "instance"], "on_a_module" => ["ApiTest::Odd::Inner", "singleton"],
      "in_nameless" => ["#<Class>", "instance"], "of_one" => ["#<Object>", "singleton"]
    }
    assert_equal(expected, expected.keys.to_h { |name| [name, frames[name].values_at("owner", "kind")] })
  end

  def test_odd_method_names_are_kept_byte_by_byte
    names = ["with space", "größe", "nul\0byte", "==", "[]=", "set=", "q?", "\xFF\xFE".b, "日本".encode("EUC-JP"), "x" * 300]
    owner = Class.new
    names.each { |name| owner.define_method(name) { |*| nil } }
    Ratrace.start(out_dir: out_dir)
    names.each { |name| owner.new.public_send(name, *([1] * (name.end_with?("=") ? 1 : 0))) }
    recorded = frames_of(Ratrace.stop).keys

    assert_equal names.map(&:b).sort, (recorded.map(&:b) & names.map(&:b)).sort
    assert(recorded.grep(/gr/).all? { |name| name.encoding == Encoding::UTF_8 })
  end

  def original = 1
  alias other_name original

  def test_an_alias_is_told_as_called_and_as_defined
    Ratrace.start(out_dir: out_dir)
    other_name
    original
    path = Ratrace.stop

    found = events_in(path).select { |event| event["method"] == "original" }.map { |event| event["called"] }
    assert_equal ["other_name", nil], found
  end

  def test_methods_made_from_one_block_are_told_apart
    body = proc { 1 }
    owner = Class.new { %i[first_twin second_twin].each { |name| define_method(name, &body) } }
    Ratrace.start(out_dir: out_dir)
    3.times { owner.new.first_twin }
    owner.new.second_twin
    assert_equal({ "first_twin" => 3, "second_twin" => 1 }, calls_in(Ratrace.stop, of: %w[first_twin second_twin]))
  end

  def test_c_functions_are_recorded_when_asked_for
    Ratrace.start(out_dir: out_dir, c_calls: true)
    [3, 1].sort
    path = Ratrace.stop

    sort = events_in(path).find { |event| event["type"] == "c_call" && event["method"] == "sort" }
    assert_equal %w[Array c_instance], sort.values_at("owner", "kind")
    assert_sound(path)
  end

  # ---------------------------------------------------------------- attach and detach in the main Ractor

  def test_without_a_recording_there_is_nothing_to_attach_to
    assert_equal false, Ratrace.attach
    assert_equal false, Ratrace.detach
  end

  def test_the_main_ractor_is_attached_already_and_cannot_be_detached
    Ratrace.start(out_dir: out_dir)
    assert_equal true, Ratrace.attach
    assert_equal false, Ratrace.detach
    leaf
    assert_equal({ "leaf" => 1 }, ours(Ratrace.stop))
  end
end
