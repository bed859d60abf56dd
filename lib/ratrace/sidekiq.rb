# frozen_string_literal: true

require_relative "agent"

# `require "ratrace/sidekiq"` where Sidekiq is set up: its server processes are recorded, clients are not.
Sidekiq.configure_server do |config|
  config.on(:startup) { Ratrace::Agent.start }
  config.on(:shutdown) do
    Ratrace.flush
  rescue Ratrace::Error
    nil # a full disk is no reason to shut down in another way
  end
end
