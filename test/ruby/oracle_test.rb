# frozen_string_literal: true

require "test_helper"
require_relative "../oracle/corpus_program"
require_relative "../oracle/path_check"
require_relative "../oracle/product_run"
require_relative "../oracle/recorded_run"
require_relative "../oracle/tree_diff"

# Each program of the corpus runs plain, under the oracle and under `ratrace record`: it must do the same each time, and
# both recorders must have seen the same calls. ORACLE_MODE chooses the weather; RATRACE_FRAME_WORDS=0 is passed on.
class OracleTest < Minitest::Test
  parallelize_me!

  ORACLE = File.expand_path("../oracle", __dir__)
  BRACKET = File.join(ORACLE, "bracket.rb")
  STRESS_TIMEOUT = 300
  MODES = {
    "normal" => {},
    "gc_stress" => { requires: [File.join(ORACLE, "stress_boot.rb")], timeout: STRESS_TIMEOUT },
    "auto_compact" => { requires: [File.join(ORACLE, "compact_boot.rb")], timeout: STRESS_TIMEOUT },
    "tiny_slots" => { options: ["--slot-size", "16384"], lossy: true },
    "c_calls" => { options: ["--c-calls"] }
  }.freeze
  MODE = ENV.fetch("ORACLE_MODE", "normal")
  SETTINGS = MODES.fetch(MODE)
  # Traits of this run that a program may refuse as it may a mode.
  TRAITS = [MODE, ("public_path" if ENV["RATRACE_FRAME_WORDS"] == "0"), ("sanitizer" if ENV.key?("RATRACE_SANITIZE"))].compact

  Oracle::CorpusProgram.all.each do |program|
    define_method("test_#{program.name}_is_recorded_as_the_oracle_saw_it_#{MODE}") do
      skip "not for this program" if TRAITS.any? { |trait| program.refuses?(trait) }

      assert_recorded_truthfully(program.path)
    end
  end

  private

  def assert_recorded_truthfully(path)
    command = MODE == "c_calls" ? [BRACKET, path] : [path]
    plain = Oracle::ProgramRun.new("-w", *command)
    oracle = Oracle::RecordedRun.new(*command, c_calls: MODE == "c_calls")
    product = Oracle::ProductRun.new(*command, **SETTINGS)

    assert_equal plain.outcome, oracle.run.outcome, "the oracle changed what the program does"
    assert_equal plain.outcome, product.outcome, "the product changed what the program does"
    assert_equal 0, product.verify.status.exitstatus, "verify: #{product.verify.out}#{product.verify.err}"
    assert_empty product.contradictions
    compare(*[oracle, product].map { |run| Oracle::Normaliser.new(path).normalise(run.sessions) })
  end

  def compare(expected, actual)
    if SETTINGS[:lossy]
      assert_empty Oracle::PathCheck.new(expected).strangers(actual), "stacks that never were"
    else
      assert expected == actual, Oracle::TreeDiff.new(expected, actual).to_s
    end
  end
end
