# frozen_string_literal: true

module Ratrace
  VERSION = "0.1.0"
end
