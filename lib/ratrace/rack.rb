# frozen_string_literal: true

require_relative "agent"

module Ratrace
  # `use Ratrace::Rack` in config.ru, or in Rails' middleware: whoever builds the application is recorded, and so are the
  # workers it forks. It is not in the way of a request: what is put into the stack is the application itself.
  module Rack
    # @param app [#call]
    # @return [#call] the same
    def self.new(app)
      Agent.start
      app
    end
  end
end
