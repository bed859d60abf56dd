# frozen_string_literal: true

require_relative "version"

module Ratrace
  # Looks at everything a recording depends on, as this user, with the settings of the environment and the file. It
  # changes nothing: what it tries, it tries in a directory of its own.
  class Doctor
    # level: "ok", "warning" or "failure"; remedy: what to do, nil while all is well
    Finding = Struct.new(:area, :level, :text, :remedy, keyword_init: true)

    # Variables that are no settings.
    OTHERS = /\ARATRACE_(?:CONFIG|DISABLED|BOOT|SHIP_.*|SERVE_.*|SANITIZE|TEST_POINTS|WERROR|ROOTS)\z/.freeze

    autoload :Directories, File.expand_path("doctor/directories", __dir__)
    autoload :Endpoint, File.expand_path("doctor/endpoint", __dir__)
    autoload :Trial, File.expand_path("doctor/trial", __dir__)

    # @return [Array<Finding>]
    attr_reader :findings

    # @return [Configuration, nil] nil where it is wrong
    attr_reader :configuration

    def initialize(env: ENV)
      @env = env
      @findings = []
      examine
    end

    # @return [Boolean] has nothing failed?
    def well?
      findings.none? { |finding| finding.level == "failure" }
    end

    private

    def examine
      return unless extension && settings

      libraries
      [Directories, Trial, Endpoint].each { |part| @findings.concat(part.new(@configuration).findings) }
    end

    def add(area, level, text, remedy = nil)
      @findings << Finding.new(area: area, level: level, text: text, remedy: remedy)
    end

    def extension
      add("ruby", "ok", RUBY_DESCRIPTION)
      require_relative "../ratrace"
      add("extension", "ok", "version #{VERSION}, built for ruby #{Native::BUILT_FOR}, loaded on #{RUBY_VERSION}")
      true
    rescue LoadError => e
      add("extension", "failure", e.message.lines.first.chomp, "build it for this Ruby: gem pristine ratrace")
      false
    end

    def settings
      unknown = @env.keys.grep(/\ARATRACE_/).grep_v(OTHERS) - Settings::ALL.values.flat_map(&:variables)
      unknown.sort.each { |name| add("configuration", "warning", "#{name} is set and is no setting", "correct its name, or unset it") }
      @configuration = Configuration.new(env: @env)
      set = Settings::ALL.keys.count { |name| @configuration.source(name) != "default" }
      add("configuration", "ok", "valid; settings that are not the defaults: #{set} of #{Settings::ALL.size}")
      disabled unless @configuration.enabled
      true
    rescue ConfigurationError => e
      e.message.each_line(chomp: true) { |line| add("configuration", "failure", line, "correct it; until then nothing is recorded") }
      false
    end

    def disabled
      add("configuration", "warning", "recording is disabled by #{@configuration.source(:enabled)}",
          "enable it, if that is not meant")
    end

    def libraries
      found = Native.libraries
      add("libraries", "ok", "zstd #{found[:zstd]}, protobuf-c #{found[:protobuf_c]}")
      missing = [found[:curl_missing], found[:crypto_missing]].compact
      return add("libraries", "ok", "libcurl and libcrypto can be loaded") if missing.empty?

      missing.each do |text|
        reason, remedy = text.split(": ", 2)
        add("libraries", @configuration.export_url ? "failure" : "warning", "#{reason}; without it nothing can be delivered", remedy)
      end
    end
  end
end
