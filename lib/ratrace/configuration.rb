# frozen_string_literal: true

require_relative "application"
require_relative "errors"
require_relative "settings"
require_relative "trace"
require_relative "version"

module Ratrace
  # What ratrace was asked to do: every setting's value and where it came from. Frozen.
  #
  # Sources, weakest first: the defaults; the YAML file named by RATRACE_CONFIG; the environment (RATRACE_ and the
  # setting's name); the block of {Ratrace.configure}; the arguments of {Ratrace.start}. All are checked together, and
  # one error tells every mistake, a line each.
  class Configuration
    FILE_VARIABLE = "RATRACE_CONFIG"
    DISABLED_VARIABLE = "RATRACE_DISABLED" # beats all sources, for good
    FILE_BYTES_MAX = 1024 * 1024
    SECRET_BYTES_MAX = 4096
    TRACE_BYTES = 255 # of it in the segments

    Value = Struct.new(:setting, :value, :source)
    private_constant :Value

    # What the block of {Ratrace.configure} gets: a writer for each setting, and `trace` as a call.
    class Builder
      # @return [Hash{Symbol => Object}]
      attr_reader :values

      def initialize(values = {})
        @values = values.dup
      end

      Settings::ALL.each_key { |name| define_method(:"#{name}=") { |value| @values[name] = value } }

      # @param patterns [Hash] files: and methods:, each a pattern or several
      def trace(**patterns)
        @values[:trace] = patterns
      end

      def method_missing(name, *)
        raise ConfigurationError, "unknown setting #{name.to_s.chomp("=")} in the configure block: " \
                                  "allowed are #{Settings::ALL.keys.join(", ")}"
      end

      def respond_to_missing?(*)
        false
      end
    end

    Settings::ALL.each_key { |name| define_method(name) { @values.fetch(name) } }

    # @param arguments [Hash{Symbol => Object}] strongest
    # @param block [Hash{Symbol => Object}] what a {Builder} took
    # @param env [#[]] environment
    # @raise [ConfigurationError] a line for each mistake: the setting, the value, the source and what is allowed
    def initialize(arguments = {}, block: {}, env: ENV)
      unknown = arguments.keys - Settings::ALL.keys
      unless unknown.empty?
        raise ConfigurationError, "unknown option #{unknown.first}: allowed are #{Settings::ALL.keys.join(", ")}"
      end

      @errors = []
      @sources = {}
      @values = check(gather(arguments, block, env))
      @values[:enabled], @sources[:enabled] = false, DISABLED_VARIABLE if env[DISABLED_VARIABLE] == "1"
      read_secrets
      check_together
      raise ConfigurationError, @errors.join("\n") unless @errors.empty?

      [@values, @sources].each(&:freeze)
      remove_instance_variable(:@errors)
      freeze
    end

    # Where a setting's value came from: "default", the file, the variable, "configure block" or "argument".
    def source(name)
      @sources.fetch(name)
    end

    # May recording be turned on later?
    def startable?
      source(:enabled) != DISABLED_VARIABLE
    end

    # A value for people; of a secret, whether it is set.
    def show(name)
      Settings::ALL.fetch(name).show(@values.fetch(name))
    end

    # @return [Hash{Symbol => Object}]
    def to_h
      @values.dup
    end

    # No secret is in it.
    def inspect
      "#<#{self.class} #{Settings::ALL.keys.map { |name| "#{name}=#{show(name)}" }.join(" ")}>"
    end
    alias to_s inspect

    # @return [Trace, nil] which methods are recorded; nil = all
    def scope
      Trace.new(**trace, globs: absolute(trace[:files]), foreign: absolute(exclude)) if Hash === trace
    end

    # What the extension takes. Globs are made absolute here, because the program may change its directory.
    # @return [Hash{Symbol => Object}]
    def to_native
      {
        out_dir: out_dir, live_dir: live_dir, service: service || Application.program_name, tags: packed_tags, slot_bytes: slot_size,
        period_ns: nanoseconds(period), segment_bytes: segment_size, segment_age_ns: nanoseconds(segment_age),
        file_mode: file_mode, c_calls: c_calls, include: absolute(include), exclude: absolute(exclude),
        clock: clock == "monotonic" ? 1 : nil, fence: fence == "seq_cst" ? 2 : nil, frame_words: frame_words,
        trace: scope&.summary(TRACE_BYTES), max_overhead: max_overhead,
        canary_ns: canary_ns,
        ruby: "#{RUBY_VERSION} #{RUBY_PLATFORM}", recorder: "ratrace #{VERSION}", own: __dir__, debug: debug
      }
    end

    # What Native.exporter_start takes.
    # @return [Hash{Symbol => Object}]
    def to_exporter
      { out_dir: out_dir, live_dir: live_dir, **target, method: export_method, headers: export_headers,
        token: export_token, finalize_url: finalize_url, ca_file: ca_file, proxy: proxy, spool_bytes: spool_size,
        spool_age: spool_age, deadline: shutdown_deadline, debug: debug }.compact
    end

    private

    def target
      return { url: export_url } unless export_url&.match?(%r{\As3://}i)

      bucket, prefix = export_url.sub(%r{\As3://}i, "").split("/", 2)
      prefix = "#{prefix}/" unless prefix.nil? || prefix.empty? || prefix.end_with?("/")
      { s3: { bucket: bucket, prefix: prefix, path_style: s3_path_style, endpoint: s3_endpoint, region: s3_region,
              access_key_id: s3_access_key_id, secret_access_key: s3_secret_access_key,
              session_token: s3_session_token }.compact }
    end

    # As record/tags.h has them.
    def packed_tags
      tags.flatten.map { |part| "#{part.b}\0" }.join
    end

    # For tests; nil = an hour.
    def canary_ns
      text = ENV["RATRACE_CANARY_PERIOD"]
      nanoseconds(Float(text)) if text
    end

    def nanoseconds(seconds)
      (seconds * 1_000_000_000).round
    end

    # ---------------------------------------------------------------- sources

    def gather(arguments, block, env)
      given = from_file(env[FILE_VARIABLE]).merge(from_env(env))
      [[block, "configure block"], [arguments, "argument"]].each do |values, source|
        values.each { |name, value| given[name] = [value, source] }
      end
      given
    end

    # Name => value, source. An empty variable is as good as none.
    def from_env(env)
      Settings::ALL.each_with_object({}) do |(name, setting), given|
        variable = setting.variables.find { |one| env[one] && !env[one].empty? }
        given[name] = [setting.parse(env[variable]), variable] if variable
      end
    end

    # Name => value, source.
    def from_file(path)
      return {} if path.nil? || path.empty?

      keys = read_yaml(path)
      unknown = keys.keys.reject { |key| key.is_a?(String) && Settings::ALL.key?(key.to_sym) }
      unknown.each { |key| @errors << "unknown setting #{key} in #{path}: allowed are #{Settings::ALL.keys.join(", ")}" }
      (keys.keys - unknown).to_h do |key|
        value = keys[key]
        [key.to_sym, [value.is_a?(String) ? Settings::ALL[key.to_sym].parse(value) : value, path]]
      end
    end

    def read_yaml(path)
      text = read_small(path, FILE_VARIABLE, FILE_BYTES_MAX)
      return {} unless text

      keys, problem = parse(text)
      return keys || {} if problem.nil? && (keys.nil? || keys.is_a?(Hash))

      @errors << (problem ? "#{path} of #{FILE_VARIABLE} is not plain YAML: #{problem}"
                          : "#{path} of #{FILE_VARIABLE} holds no settings; write one a line, such as `period: 2`")
      {}
    end

    # Writes value and problem.
    ELSEWHERE = <<~RUBY
      require "yaml"
      value, problem = begin
        [YAML.safe_load($stdin.read), nil]
      rescue Psych::Exception => e
        [nil, e.message.lines.first.chomp]
      end
      $stdout.binmode.write(Marshal.dump([value, problem]))
    RUBY
    private_constant :ELSEWHERE

    # YAML is a gem. Loaded here, before the host's Gemfile is read, it could be another version than the host wants, and
    # then the host would not start. So another Ruby reads it; in a thread, because $? is a thread's own.
    def parse(text)
      command = [{ "RUBYOPT" => nil, "RUBYLIB" => nil }, RbConfig.ruby, "--disable-gems", "-e", ELSEWHERE]
      dumped = Thread.new do
        IO.popen(command, "r+b", err: File::NULL) do |io|
          io.write(text)
          io.close_write
          io.read
        end
      end.value
      dumped.empty? ? [nil, "no Ruby could be started to read it"] : Marshal.load(dumped)
    rescue SystemCallError => e
      [nil, e.message]
    end

    # A file's text, or nil and an error; nothing of the content is in the message.
    def read_small(path, setting, limit)
      raise Errno::EINVAL, "not a regular file" unless File.file?(path) || !File.exist?(path)

      text = File.open(path, "r:UTF-8") { |file| file.read(limit + 1) || "" }
      return text if text.bytesize <= limit

      @errors << "#{path} of #{setting} is too large; #{limit} bytes are read"
      nil
    rescue SystemCallError, ArgumentError => e
      @errors << "#{path} of #{setting} cannot be read: #{e.message.sub(/ @ .*/m, "")}"
      nil
    end

    # ---------------------------------------------------------------- checks

    def check(given)
      Settings::ALL.to_h do |name, setting|
        value, @sources[name] = given.fetch(name) { [setting.default, "default"] }
        [name, checked(setting, value, @sources[name])]
      end
    end

    def checked(setting, value, source)
      setting.check(value)
    rescue Setting::Refused => e
      from = { "argument" => "", "configure block" => " in the configure block" }.fetch(source) { " of #{source}" }
      shown = setting.secret? ? "a secret value" : setting.show(value)
      @errors << "#{setting.name}: #{shown}#{from} is not allowed; use #{e.message}"
      nil
    end

    # `export_token_file` gives export_token its value.
    def read_secrets
      path = @values[:export_token_file]
      return unless path && @values[:export_token].nil?

      token = read_small(path, :export_token_file, SECRET_BYTES_MAX)&.strip
      return unless token

      @values[:export_token] = checked(Settings::ALL[:export_token], token, path)
      @sources[:export_token] = path
    end

    # What is right by itself and wrong beside another.
    def check_together
      return unless @errors.empty?

      together(:c_calls, "it without trace: functions written in C cannot be traced one by one", nil) if c_calls && scope
      together(:period, "at most segment_age", segment_age) if period > segment_age
      together(:segment_size, "at most spool_size", spool_size) if segment_size > spool_size
      together(:finalize_url, "export_url, too", nil) if finalize_url && !export_url
      together(:export_token, "https in export_url", export_url) if export_token && plain?(export_url)
    end

    # A token in the clear is no secret; on this machine nobody listens.
    def plain?(url)
      url&.match?(%r{\Ahttp://(?!(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?:[:/]|\z))}i)
    end

    def together(name, allowed, other)
      @errors << "#{name}: #{show(name)} of #{source(name)} is not allowed; use #{allowed}#{" (#{other})" if other}"
    end

    # ---------------------------------------------------------------- for the extension

    # A relative glob starts at the current directory. "*.rb" matches at any depth: a star crosses slashes. A method's
    # file may be relative, too, as of `ruby app.rb`, so what lies below the current directory is named both ways; such a
    # file begins with no slash and, unlike Ruby's "<internal:..." and "(eval)", with no bracket.
    def absolute(globs)
      here = "#{Dir.pwd}/"
      globs.flat_map do |glob|
        next [glob] if glob.start_with?("*")

        full = glob.start_with?("/") ? glob : here + glob.delete_prefix("./")
        near = full.delete_prefix(here)
        near == full ? [full] : [full, near.sub(%r{\A\*+/?}, "[!/<(]*"), "./#{near}"]
      end
    end
  end
end
