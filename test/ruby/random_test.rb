# frozen_string_literal: true

require "test_helper"
require "tmpdir"
require_relative "../oracle/probe_log"
require_relative "../oracle/product_run"
require_relative "../oracle/random_program"
require_relative "../oracle/recorded_run"

# Random programs ask at many points which of their methods are open. The VM's backtrace, the shadow stack of the
# recorder and the stack decoded from its file must agree, as must the oracle's.
# RANDOM_SEEDS: how many programs. RANDOM_SEED: the first seed; "new" for programs nobody has seen.
class RandomTest < Minitest::Test
  parallelize_me!

  TIMEOUT = 120
  SEEDS = Integer(ENV.fetch("RANDOM_SEEDS", "5"))
  FIRST_SEED = ENV["RANDOM_SEED"] == "new" ? Random.new_seed % 1_000_000 : Integer(ENV.fetch("RANDOM_SEED", "1"))
  puts "random programs: RANDOM_SEED=#{FIRST_SEED} RANDOM_SEEDS=#{SEEDS}"

  SEEDS.times do |index|
    seed = FIRST_SEED + index

    define_method("test_program_#{seed}_has_the_stacks_the_oracle_decoded") do
      with_program(seed) do |program, log|
        oracle = Oracle::RecordedRun.new(program, env: { "PROBE_OUT" => log })

        assert_done oracle.run
        assert_same_stacks Oracle::ProbeLog.new(log).truth, Oracle::ProbeLog.of_sessions(oracle.sessions)
      end
    end

    define_method("test_program_#{seed}_has_the_stacks_the_recorder_kept_and_wrote") do
      with_program(seed) do |program, log|
        product = Oracle::ProductRun.new(program, env: { "PROBE_OUT" => log }, timeout: TIMEOUT)
        probes = Oracle::ProbeLog.new(log)

        assert_done product.run
        assert_empty product.contradictions
        assert_equal probes.size, probes.shadows, "probes that were shown the shadow stack"
        assert_empty probes.wrong_shadows.first(3), "shadow stacks unlike the true ones"
        assert_same_stacks probes.truth, Oracle::ProbeLog.of_sessions(product.sessions)
      end
    end

    # Much is dropped there, and intervals begin anywhere: in calls, returns and unwinding.
    define_method("test_program_#{seed}_keeps_its_shadow_true_in_the_smallest_slots") do
      with_program(seed) do |program, log|
        product = Oracle::ProductRun.new(program, env: { "PROBE_OUT" => log }, options: ["--slot-size", "16384"], lossy: true,
                                              timeout: TIMEOUT)
        probes = Oracle::ProbeLog.new(log)

        assert_done product.run
        assert_empty product.contradictions
        assert_equal 0, product.verify.status.exitstatus, "verify: #{product.verify.out}#{product.verify.err}"
        assert_equal probes.size, probes.shadows, "probes that were shown the shadow stack"
        assert_empty probes.wrong_shadows.first(3), "shadow stacks unlike the true ones"
      end
    end
  end

  private

  def with_program(seed)
    Dir.mktmpdir do |dir|
      program = File.join(dir, "random.rb")
      File.write(program, Oracle::RandomProgram.new(seed).source)
      yield program, File.join(dir, "probes")
    end
  end

  def assert_done(run)
    assert_equal({ out: "done\n", err: "", exit: 0, signal: nil, timed_out: false }, run.outcome)
  end

  def assert_same_stacks(truth, decoded)
    refute_empty truth
    return if truth == decoded

    missing, extra = (truth - decoded).first, (decoded - truth).first
    at = [missing, extra].map(&:to_a).then { |lists| lists.first.zip(lists.last).index { |one, two| one != two } }
    flunk "#{truth.size} contexts probed, #{decoded.size} decoded; first difference at probe #{at.inspect}:\n" \
          "- #{missing && missing[at || -1].inspect}\n+ #{extra && extra[at || -1].inspect}"
  end
end
