# frozen_string_literal: true

require "test_helper"
require_relative "../oracle/corpus_program"
require_relative "../oracle/narrowing"
require_relative "../oracle/product_run"
require_relative "../oracle/recorded_run"
require_relative "../oracle/tree_diff"

# Programs of the corpus run plain, under the oracle, which sees every call, and under scoped tracing: they must do the
# same each time, and what was recorded must be what the oracle saw of the methods that were chosen.
class ScopedOracleTest < Minitest::Test
  parallelize_me!

  CORPUS = Oracle::CorpusProgram::FOLDER
  VM = "<internal:" # core methods written in Ruby, which ratrace's own Ruby calls, too
  # name => [RATRACE_TRACE, which of the calls that the oracle saw are in it, every how many programs]
  CHOICES = {
    "by_file" => ["#{CORPUS}/*", ->(node) { node.file.to_s.start_with?("#{CORPUS}/") }, 1],
    "by_name" => [
      "*#*e*",
      lambda do |node|
        node.kind == "instance" && node.owner.match?(/\A[A-Z][\w:]*\z/) && node.method.include?("e") &&
          !node.file.to_s.start_with?(VM)
      end,
      6
    ]
  }.freeze
  # Traits of this run that a program may refuse.
  TRAITS = ["scoped", ("public_path" if ENV["RATRACE_FRAME_WORDS"] == "0"), ("sanitizer" if ENV.key?("RATRACE_SANITIZE"))].compact

  Oracle::CorpusProgram.all.each.with_index do |program, index|
    CHOICES.each do |name, (trace, wanted, step)|
      next unless (index % step).zero?

      define_method("test_#{program.name}_traced_#{name}_is_recorded_as_far_as_it_was_asked_for") do
        skip "not for this program" if TRAITS.any? { |trait| program.refuses?(trait) }

        assert_scoped(program.path, trace, wanted)
      end
    end
  end

  private

  def assert_scoped(path, trace, wanted)
    plain = Oracle::ProgramRun.new("-w", path)
    oracle = Oracle::RecordedRun.new(path)
    product = Oracle::ProductRun.new(path, env: { "RATRACE_TRACE" => trace })
    assert_equal plain.outcome, oracle.run.outcome, "the oracle changed what the program does"
    assert_equal plain.outcome, product.outcome, "the product changed what the program does"
    assert_equal 0, product.verify.status.exitstatus, "verify: #{product.verify.out}#{product.verify.err}"
    assert_empty product.contradictions
    narrowing = Oracle::Narrowing.new(&wanted)
    compare(*[oracle, product].map { |run| Oracle::Normaliser.new(path).normalise(narrowing.sessions(run.sessions)) })
  end

  def compare(expected, actual)
    assert expected == actual, Oracle::TreeDiff.new(expected, actual).to_s
  end
end
