# frozen_string_literal: true

require "rbconfig"

module Ratrace
  # Which application this process is: its name, and which files are its own.
  class Application
    NAME_BYTES = 48
    # Files that are on no disk: of `ruby -e` and irb.
    TYPED = ["-e", "(irb)"].freeze
    # What this Ruby has behind the names of its tools: 3.3 where `ruby` is ruby3.3 and `bundle` bundle3.3.
    SUFFIX = RbConfig::CONFIG["ruby_install_name"].delete_prefix(RbConfig::CONFIG["RUBY_BASE_NAME"]).freeze

    # What it was started as: the script's name, `bundle exec NAME` by the name. Kept, and by forks too, because servers
    # write into $0 what each of their processes does.
    def self.program_name
      @program_name ||= begin
        program = bundled || File.basename($PROGRAM_NAME.to_s, ".rb")
        name = program.scrub("_").gsub(/[^\w.-]+/, "_")
        (name.empty? || name.start_with?("-") ? "ruby" : name[0, NAME_BYTES]).freeze
      end
    end

    # The script's name, as it is for a tool of every Ruby's.
    def self.tool
      File.basename($PROGRAM_NAME.to_s).delete_suffix(SUFFIX)
    end

    # The command bundler is going to run in this process.
    def self.bundled
      return unless %w[bundle bundler].include?(tool) && ARGV.first == "exec"

      command = ARGV.drop(1).find { |argument| !argument.start_with?("-") }
      command && File.basename(command, ".rb")
    end

    # @return [String]
    attr_reader :root

    # @param root [String, nil] the directory of the application; nil = where its Gemfile is, else the current one
    def initialize(root)
      @root = root || (defined?(::Rails) && ::Rails.respond_to?(:root) && ::Rails.root&.to_s) || bundle || Dir.pwd
    end

    # Globs of its own files: below its root, and below the script's directory if that is not a gem's or Ruby's.
    #
    # @return [Array<String>]
    def files
      [@root, *script_dir].uniq.map { |dir| "#{dir.chomp("/")}/**" } + TYPED
    end

    # Globs of the files below that are nobody's own: gems, and Ruby's library.
    #
    # @return [Array<String>]
    def foreign
      (libraries + [File.join(@root, "vendor/bundle")]).map { |dir| "#{dir}/**" }
    end

    private

    def bundle
      gemfile = ENV["BUNDLE_GEMFILE"]
      File.dirname(File.expand_path(gemfile)) if gemfile && !gemfile.empty?
    end

    def script_dir
      script = File.expand_path($PROGRAM_NAME.to_s)
      return unless File.file?(script)

      dir = File.dirname(script)
      dir unless [*libraries, *bin_dirs].any? { |foreign| dir == foreign || dir.start_with?("#{foreign}/") }
    end

    def libraries
      config = RbConfig::CONFIG
      gems = defined?(::Gem) ? ::Gem.path : []
      [*config.values_at("rubylibprefix", "rubylibdir", "vendordir", "sitedir"), *gems].compact
                                                                                       .reject { |dir| dir == @root }.uniq
    end

    def bin_dirs
      [RbConfig::CONFIG["bindir"], *(::Gem.bindir if defined?(::Gem))]
    end
  end
end
