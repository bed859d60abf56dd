# frozen_string_literal: true

# Loaded by `ruby -r`: every major collection also compacts the heap, from the program's first line on.

require_relative "first_line"

if GC.respond_to?(:auto_compact=)
  Oracle::FirstLine.of(ENV.fetch("ORACLE_PROGRAM")) { GC.auto_compact = true }
end
