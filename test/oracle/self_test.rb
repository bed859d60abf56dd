# frozen_string_literal: true

require "minitest/autorun"
require "tempfile"
require_relative "corpus_program"
require_relative "recorded_run"
require_relative "tree_diff"

# Checks the oracle without the product: against trees written by hand, and that recording a program of the corpus
# changes nothing it does and sees the same calls each time. Run: ruby test/oracle/self_test.rb
class OracleSelfTest < Minitest::Test
  Oracle::CorpusProgram.all.each do |program|
    define_method("test_corpus_#{program.name}_is_deterministic_under_the_oracle") do
      plain = Oracle::ProgramRun.new("-w", program.path)
      first, second = Array.new(2) { Oracle::RecordedRun.new(program.path) }

      assert_equal plain.outcome, first.run.outcome
      assert_equal plain.outcome, second.run.outcome
      trees = [first, second].map { |run| Oracle::Normaliser.new(program.path).normalise(run.sessions) }
      assert_equal trees.first, trees.last, Oracle::TreeDiff.new(*trees).to_s
      refute_empty trees.first
    end
  end

  def test_a_call_in_a_block_is_below_the_method_that_yields
    assert_tree <<~PROGRAM, [["outer", [["each_twice", [["inner", []], ["inner", []]]]]]]
      def each_twice = [yield, yield]
      def inner = nil
      def outer = each_twice { inner }
      outer
    PROGRAM
  end

  def test_frames_of_an_overflow_are_gone_when_the_rescue_runs
    tree = tree_of(<<~PROGRAM)
      def dive(n) = dive(n + 1)
      def after = nil
      def safe
        dive(0)
      rescue SystemStackError
        [1].each { after }
      end
      safe
    PROGRAM

    safe = tree.first.first
    assert_equal ["safe", "returned"], safe.values_at(1, 5)
    assert_equal [%w[dive gone], %w[after returned]], safe.last.map { |call| call.values_at(1, 5) }
  end

  def test_each_fiber_has_a_tree_of_its_own
    assert_tree <<~PROGRAM, [["first", [["pause", []]]]], [["go", []], ["go", []]]
      def pause = Fiber.yield
      def first = pause
      def go(fiber) = fiber.resume
      fiber = Fiber.new { first }
      2.times { go(fiber) }
    PROGRAM
  end

  private

  def tree_of(source)
    Tempfile.create(["program", ".rb"]) do |file|
      file.write(source)
      file.close
      run = Oracle::RecordedRun.new(file.path)
      assert_equal 0, run.run.status.exitstatus, run.run.err
      Oracle::Normaliser.new(file.path).normalise(run.sessions)
    end
  end

  def assert_tree(source, *contexts)
    found = tree_of(source).map { |calls| names(calls) }

    assert_equal contexts.sort, found.sort
  end

  def names(calls)
    calls.map { |call| [call[1], names(call.last)] }
  end
end
