# frozen_string_literal: true

require "rails/railtie"
require_relative "agent"

module Ratrace
  # `gem "ratrace", require: "ratrace/rails"`: the application is recorded from before its own code is loaded.
  #
  #   config.ratrace.period = 2 # in config/application.rb or an environment's file
  class Railtie < ::Rails::Railtie
    config.ratrace = ActiveSupport::OrderedOptions.new

    # The environment's file has been read, the application's initializers and classes have not.
    initializer "ratrace.start", before: :load_config_initializers do |app|
      Railtie.start(app.config.ratrace)
    end

    # @param settings [#each_pair] names and values
    def self.start(settings)
      Ratrace.configure { |builder| settings.each_pair { |name, value| builder.public_send(:"#{name}=", value) } }
      Agent.start
    rescue ConfigurationError => e
      Agent.complain(e)
    end
  end
end
