# frozen_string_literal: true

# RUBYOPT=-rratrace/auto records every Ruby program started with it, with no change of code; RATRACE_ variables and
# RATRACE_CONFIG say how. Whatever goes wrong here is one line on stderr, and the program runs as it would.
#
# Programs that are Ruby's own tools are not recorded, nor is `ratrace` itself; `bundle exec` is, as the command it runs.
begin
  unless ENV.key?("RATRACE_BOOT") || ENV["RATRACE_DISABLED"] == "1"
    require_relative "application"
    helper = %w[gem bundle bundler ri rdoc extconf.rb ratrace].include?(Ratrace::Application.tool)
    unless helper && !Ratrace::Application.bundled
      require_relative "agent"
      Ratrace::Agent.start
    end
  end
rescue StandardError, ScriptError => e
  begin
    $stderr.write("ratrace: not recording: #{e.message.scrub.lines.first.to_s.chomp}\n")
  rescue SystemCallError, IOError
    nil
  end
end
