# frozen_string_literal: true

module Ratrace
  # Everything ratrace raises on purpose. The message names what is wrong and what would be right.
  class Error < StandardError; end

  # An option, or a combination of options, that is not allowed.
  class ConfigurationError < Error; end

  # A recording that cannot be read.
  class ReadError < Error; end
end
