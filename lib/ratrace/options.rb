# frozen_string_literal: true

require_relative "errors"
require_relative "version"

module Ratrace
  # What a recording was asked to do: checked at the edge, then frozen.
  #
  # Each value comes from the argument, else from the environment, else from a default.
  class Options
    OUT_DIR = "ratrace.out"
    PERIOD = 1.0
    PERIODS = (0.01..3600.0)
    SLOT_SIZE = 8 * 1024 * 1024
    SLOT_SIZES = (16 * 1024..32 * 1024 * 1024)
    SLOT_SIZE_STEP = 4096
    GLOBS_MAX = 64
    GLOB_BYTES_MAX = 1024
    SHOWN_MAX = 100 # characters of a wrong value in its message

    NAMES = %i[out_dir period slot_size c_calls include exclude].freeze

    attr_reader :out_dir, :period, :slot_size, :c_calls, :include, :exclude

    # @raise [ConfigurationError] naming the option, the value and what is allowed
    def initialize(**options)
      unknown = options.keys - NAMES
      unless unknown.empty?
        raise ConfigurationError, "unknown option #{unknown.first}: allowed are #{NAMES.join(", ")}"
      end

      @out_dir = check_out_dir(options.fetch(:out_dir) { from_env("RATRACE_OUT_DIR", OUT_DIR) })
      @period = check_period(options.fetch(:period, PERIOD))
      @slot_size = check_slot_size(options.fetch(:slot_size, SLOT_SIZE))
      @c_calls = check_boolean(:c_calls, options.fetch(:c_calls, false))
      @include = check_globs(:include, options[:include])
      @exclude = check_globs(:exclude, options[:exclude])
      freeze
    end

    # The same as plain values, for another process.
    # @return [Hash{String => Object}]
    def to_h
      NAMES.to_h { |name| [name.to_s, public_send(name)] }
    end

    # What the extension takes. Globs are made absolute here, because the program may change its directory.
    def to_native
      {
        out_dir: out_dir, slot_bytes: slot_size, period_ns: (period * 1_000_000_000).round, c_calls: c_calls,
        include: absolute(include), exclude: absolute(exclude), live_dir: ENV["RATRACE_LIVE_DIR"],
        service: service, ruby: "#{RUBY_VERSION} #{RUBY_PLATFORM}", recorder: "ratrace #{VERSION}",
        clock: ENV["RATRACE_CLOCK"] == "monotonic" ? 1 : nil, fence: ENV["RATRACE_FENCE"] == "seq_cst" ? 2 : nil,
        own: __dir__, debug: ENV["RATRACE_DEBUG"] == "1"
      }
    end

    private

    def from_env(name, default)
      value = ENV[name]
      value.nil? || value.empty? ? default : value
    end

    # The program's name, in file names and reports.
    def service
      name = File.basename($PROGRAM_NAME.to_s, ".rb").scrub("_").gsub(/[^\w.-]+/, "_")
      name.empty? ? "ruby" : name[0, 48]
    end

    def refuse(name, value, allowed)
      shown = Object === value ? value.inspect : "a BasicObject"
      shown = "#{shown[0, SHOWN_MAX]}..." if shown.length > SHOWN_MAX
      raise ConfigurationError, "#{name}: #{shown} is not allowed; use #{allowed}"
    end

    # Something the system takes as a path or a pattern.
    def text?(value)
      String === value && !value.empty? && value.encoding.ascii_compatible? && !value.include?("\0")
    end

    def check_out_dir(value)
      value = value.to_path if Object === value && value.respond_to?(:to_path)
      refuse(:out_dir, value, "the path of a directory") unless text?(value)
      path = expand(value)
      refuse(:out_dir, value, "a path of at most 1000 bytes") if path.bytesize > 1000
      refuse(:out_dir, value, "a directory: this is another kind of file") if File.exist?(path) && !File.directory?(path)
      path
    end

    def expand(path)
      File.expand_path(path)
    rescue ArgumentError => e # "~" of a user there is not
      refuse(:out_dir, path, "the path of a directory: #{e.message}")
    end

    def check_period(value)
      unless Numeric === value && value.real? && PERIODS.cover?(value)
        refuse(:period, value, "seconds between #{PERIODS.min} and #{PERIODS.max.to_i}")
      end
      value.to_f
    end

    def check_slot_size(value)
      allowed = "bytes between #{SLOT_SIZES.min} and #{SLOT_SIZES.max}, a multiple of #{SLOT_SIZE_STEP}"
      unless Integer === value && SLOT_SIZES.cover?(value) && (value % SLOT_SIZE_STEP).zero?
        refuse(:slot_size, value, allowed)
      end
      value
    end

    def check_boolean(name, value)
      refuse(name, value, "true or false") unless true.equal?(value) || false.equal?(value)
      value
    end

    def check_globs(name, value)
      return [].freeze if nil.equal?(value)

      globs = Array === value ? value : [value]
      refuse(name, value, "at most #{GLOBS_MAX} globs") if globs.size > GLOBS_MAX
      globs.each do |glob|
        refuse(name, glob, "a file glob such as \"app/**/*.rb\"") unless text?(glob) && glob.bytesize <= GLOB_BYTES_MAX
      end
      globs.map { |glob| glob.dup.freeze }.freeze
    end

    # A relative glob starts at the current directory. "*.rb" matches at any depth: a star crosses slashes. A method's
    # file may be relative, too, as of `ruby app.rb`, so what lies below the current directory is named both ways.
    def absolute(globs)
      here = "#{Dir.pwd}/"
      globs.flat_map do |glob|
        next [glob] if glob.start_with?("*")

        full = glob.start_with?("/") ? glob : here + glob.delete_prefix("./")
        near = full.delete_prefix(here)
        near == full ? [full] : [full, near, "./#{near}"]
      end
    end
  end
end
