# frozen_string_literal: true

# Loaded by `ruby -r`: a garbage collection at every allocation from the program's first line on.

require_relative "first_line"

Oracle::FirstLine.of(ENV.fetch("ORACLE_PROGRAM")) { GC.stress = true }
