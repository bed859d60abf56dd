# frozen_string_literal: true

require "puma/plugin"
require "ratrace/agent"

# `plugin :ratrace` in Puma's configuration: master and workers are recorded, each into a stream of its own. The master
# starts before it loads the application, so that its workers inherit what is set up once; each goes on by itself.
Puma::Plugin.create do
  def start(_launcher)
    Ratrace::Agent.start
  end
end
