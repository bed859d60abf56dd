# frozen_string_literal: true

# What every Ruby test needs. Ruby's warnings count as failures: one in a test fails that test, one anywhere else (in a
# thread, while loading, or rescued by somebody) fails the run.

ROOT = File.expand_path("../..", __dir__)

Warning[:deprecated] = true
Warning[:experimental] = false # Ractors are, and we test under them

module WarningsFail
  # Other people's gems and Ruby's own library may warn as they like.
  FOREIGN = [*Gem.path, RbConfig::CONFIG["rubylibdir"], RbConfig::CONFIG["vendordir"]].freeze

  def self.seen
    @seen ||= []
  end

  def warn(message, **options)
    return super if message.start_with?(*FOREIGN)

    WarningsFail.seen << message
    raise "Ruby warned: #{message}"
  end
end
Warning.extend(WarningsFail)

ENV["MT_NO_PLUGINS"] = "1" # an installed gem may bring a reporter of its own
require "minitest/autorun"
require "open3"
require "ratrace"

Minitest.after_run do
  next if WarningsFail.seen.empty?

  $stderr.puts "\nRuby warned, so the run fails:", WarningsFail.seen
  exit 1
end

class Minitest::Test
  # Runs Ruby code, or with a file first its program, in a process of its own that can require ratrace.
  # Answers with what it wrote and its status; a warning there fails the test as well.
  def run_ruby(*arguments, code: nil, env: {})
    command = [RbConfig.ruby, "-w", "-I#{File.join(ROOT, "lib")}", *(["-e", code] if code), *arguments]
    out, err, status = Open3.capture3(env, *command)
    refute_match(/: warning: /, err)
    [out, err, status]
  end
end
