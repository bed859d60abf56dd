# frozen_string_literal: true

module Ratrace
  # One setting: what it is called, what it may be, and what to say of a value that it may not be.
  #
  # A value comes as a Ruby object (an argument, the configure block, a YAML file) or as text (the environment, or a
  # string in YAML where something else is wanted). Both are checked in the same way.
  class Setting
    # A value that is not allowed; the message says what is.
    class Refused < StandardError; end

    PATH_BYTES_MAX = 1000
    TEXT_BYTES_MAX = 1024
    LIST_MAX = 64
    TAGS_BYTES_MAX = 1024 # as much as the extension keeps (record/tags.h)
    SHOWN_MAX = 100 # characters of a value in a message
    SIZE_UNITS = { "" => 1, "K" => 1024, "M" => 1024**2, "G" => 1024**3 }.freeze
    BOOLEANS = { "1" => true, "true" => true, "yes" => true, "on" => true,
                 "0" => false, "false" => false, "no" => false, "off" => false }.freeze
    PORTS = (1..65_535).freeze
    URL = %r{\A(?<scheme>[a-z][a-z0-9+]*)://(?<user>[^/?#@]*@)?(?<host>\[[0-9a-f:.]+\]|[^/?#@:\[\]\s]+)(?<port>:\d{1,5})?(?:[/?#]\S*)?\z}i.freeze
    HEADER_NAME = /\A[!#$%&'*+.^_`|~0-9A-Za-z-]+\z/.freeze
    # In a list of files and methods: "Shop#sell", "Billing::*#charge", "Shop.open".
    METHOD_PATTERN = %r{\A[A-Z*][\w:*]*(?:#|\.)[^/\s]+\z}.freeze

    # variables: of the environment, the first that is set counts
    attr_reader :name, :type, :unit, :default, :range, :step, :choices, :doc, :variables

    # @param type [Symbol] name of a check_ method below
    # @param unit [String, nil] what a number counts
    # @param range [Range, nil] lower and upper bound
    # @param choices [Array, nil] all there are
    # @param secret [Boolean] never show the value
    # @param other [String, nil] a variable that counts where ours is not set
    def initialize(name, type, default, doc, unit: nil, range: nil, step: nil, choices: nil, secret: false, other: nil)
      @name = name
      @type = type
      @default = default
      @doc = doc
      @unit = unit
      @range = range
      @step = step
      @choices = choices
      @secret = secret
      @variables = ["RATRACE_#{name.to_s.upcase}", other].compact.freeze
      freeze
    end


    def secret?
      @secret
    end

    # @return the value as it is used: of one class, frozen
    # @raise [Refused] whose message completes "use ..."
    def check(value)
      return nil if nil.equal?(value) && default.nil?

      send(:"check_#{type}", value)
    end

    # What a text stands for; the text itself where that is not clear, for {check} to refuse.
    def parse(text)
      respond_to?(:"parse_#{type}", true) ? send(:"parse_#{type}", text) : text
    end

    # For people: never a secret.
    def show(value)
      return nil.equal?(value) || value == default ? "not set" : "set" if secret?

      text = Object === value ? masked(value) : "a BasicObject"
      text.length > SHOWN_MAX ? "#{text[0, SHOWN_MAX]}..." : text
    end

    # What {check} takes, in words.
    def allowed
      case type
      when :boolean then "true or false"
      when :number then "#{unit ? "#{unit} between" : "a number between"} #{bound(range.min)} and #{bound(range.max)}"
      when :bytes then "bytes between #{range.min} and #{range.max}#{", a multiple of #{step}" if step}"
      when :choice then any_of(choices)
      when :mode then any_of(choices.map { |mode| format("%04o", mode) })
      when :directory then "the path of a directory"
      when :path then "the path of a file"
      when :text then "one line of text"
      when :url then "a URL such as #{choices.first}://host/path, of #{any_of(choices)}"
      when :globs then "file globs such as \"app/**/*.rb\""
      when :map, :headers then "names and texts, at most #{LIST_MAX}"
      when :trace then 'files: and methods: such as "app/**/*.rb" and "Billing::*#charge", or "all"'
      end
    end

    private

    def refuse(text = allowed)
      raise Refused, text
    end

    # A password or a key in a URL is a secret wherever it turns up.
    def masked(value)
      return format("%04o", value) if type == :mode && Integer === value
      return value.inspect unless type == :url && String === value

      value.sub(%r{(?<=://)[^/?#]*@}, "***@").sub(/\?.*/m, "?***").inspect
    end

    def any_of(values)
      values.size > 1 ? "#{values[0..-2].join(", ")} or #{values.last}" : values.first
    end

    def bound(number)
      number == number.to_i ? number.to_i : number
    end

    # ---------------------------------------------------------------- texts

    def parse_boolean(text)
      BOOLEANS.fetch(text.downcase, text)
    end

    def parse_number(text)
      Float(text)
    rescue ArgumentError
      text
    end

    def parse_bytes(text)
      digits, unit = text.match(/\A(\d+)([KMG]?)(?:i?B)?\z/i)&.captures
      digits ? Integer(digits, 10) * SIZE_UNITS.fetch(unit.upcase) : text
    end

    def parse_mode(text)
      text.match?(/\A0?[0-7]{3}\z/) ? Integer(text, 8) : text
    end

    def parse_globs(text)
      text.split(",").map(&:strip)
    end

    # "name=text,name=text"; a comma in a text is %2C.
    def parse_map(text)
      text.split(",").to_h do |pair|
        key, value = pair.split("=", 2)
        return text unless value

        [key.strip, value.strip.gsub(/%\h\h/) { |code| code[1..].hex.chr }.force_encoding(text.encoding)]
      end
    end
    alias parse_headers parse_map

    def parse_trace(text)
      return text if text == "all"

      methods, files = parse_globs(text).partition { |item| METHOD_PATTERN.match?(item) }
      { files: files, methods: methods }
    end

    # ---------------------------------------------------------------- checks

    # Something the system takes as a path or a pattern.
    def text?(value)
      String === value && !value.empty? && value.encoding.ascii_compatible? && !value.include?("\0")
    end

    def check_boolean(value)
      true.equal?(value) || false.equal?(value) ? value : refuse
    end

    def check_number(value)
      Numeric === value && value.real? && range.cover?(value) ? value.to_f : refuse
    end

    def check_bytes(value)
      Integer === value && range.cover?(value) && (!step || (value % step).zero?) ? value : refuse
    end

    def check_choice(value)
      value = value.to_s if Symbol === value
      String === value && choices.include?(value) ? value.dup.freeze : refuse
    end

    def check_mode(value)
      Integer === value && choices.include?(value) ? value : refuse
    end

    def check_text(value)
      value = value.to_s if Symbol === value
      text?(value) && value.valid_encoding? && !value.match?(/[[:cntrl:]]/) ? limit(value).dup.freeze : refuse
    end

    def limit(text)
      text.bytesize <= TEXT_BYTES_MAX ? text : refuse("at most #{TEXT_BYTES_MAX} bytes")
    end

    def check_directory(value)
      path = absolute(value)
      refuse("a directory: this is another kind of file") if File.exist?(path) && !File.directory?(path)
      path
    end

    def check_path(value)
      path = absolute(value)
      refuse("a file: this is a directory") if File.directory?(path)
      path
    end

    def absolute(value)
      value = value.to_path if Object === value && value.respond_to?(:to_path)
      refuse unless text?(value)
      path = File.expand_path(value)
      refuse("a path of at most #{PATH_BYTES_MAX} bytes") if path.bytesize > PATH_BYTES_MAX
      path.freeze
    rescue ArgumentError => e # "~" of a user there is not
      refuse("#{allowed}: #{e.message}")
    end

    def check_url(value)
      parts = URL.match(value) if text?(value) && value.valid_encoding?
      refuse unless parts && choices.include?(parts[:scheme].downcase)
      refuse("a port between 1 and 65535") unless parts[:port].nil? || PORTS.cover?(parts[:port][1..].to_i)
      refuse("a URL without user and password") if parts[:user] && name != :proxy
      limit(value).dup.freeze
    end

    def check_globs(value)
      list(value) { |glob| text?(glob) && glob.bytesize <= TEXT_BYTES_MAX }
    end

    def list(value, &allowed)
      values = nil.equal?(value) ? [] : Array === value ? value : [value]
      refuse("at most #{LIST_MAX} globs") if values.size > LIST_MAX
      refuse unless values.all?(&allowed)
      values.map { |item| item.dup.freeze }.freeze
    end

    # Tags: they stand in each segment.
    def check_map(value)
      pairs = check_pairs(value)
      refuse("at most #{TAGS_BYTES_MAX} bytes in all") if pairs.flatten.sum(&:bytesize) > TAGS_BYTES_MAX
      pairs
    end

    def check_pairs(value)
      refuse unless Hash === value && value.size <= LIST_MAX
      value.to_h { |key, text| [map_part(key), map_part(text)] }.freeze
    end

    def map_part(value)
      value = value.to_s if Symbol === value || Numeric === value || true.equal?(value) || false.equal?(value)
      check_text(value)
    end

    def check_headers(value)
      check_pairs(value).each_key { |header| refuse("header names such as X-Team") unless HEADER_NAME.match?(header) }
    end

    def check_trace(value)
      return "all" if String === value && value == "all" || :all.equal?(value)

      refuse unless Hash === value && (value.keys - [:files, :methods, "files", "methods"]).empty?
      parts = %i[files methods].to_h { |key| [key, check_globs(value[key] || value[key.to_s])] }
      refuse unless parts[:methods].all? { |pattern| METHOD_PATTERN.match?(pattern) }
      parts.values.all?(&:empty?) ? refuse : parts.freeze
    end
  end
end
