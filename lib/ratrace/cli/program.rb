# frozen_string_literal: true

require "rbconfig"

module Ratrace
  class CLI
    # A program named on the command line, as the arguments of this Ruby that run it: a script by its path, a command
    # in PATH that is a Ruby script, or a Ruby itself.
    class Program
      SHEBANG_BYTES = 256
      ELF = "\x7FELF".b.freeze
      RUBY_NAME = /\Aruby[\d.]*\z/.freeze

      # @param name [String] SCRIPT or COMMAND
      # @param path [String] the directories of PATH
      # @raise [Error] when it is no Ruby program
      def initialize(name, path:)
        @name = name
        @file = File.file?(name) ? name : in_path(path) || not_found
        @head = File.open(@file, "rb") { |file| file.read(SHEBANG_BYTES) } || ""
        check
      end

      # @return [Array<String>] what comes before the program's own arguments
      def ruby_arguments
        return [] if ruby?

        @file.start_with?("-") ? ["--", @file] : [@file]
      end

      private

      def in_path(path)
        return if @name.include?("/")

        path.split(File::PATH_SEPARATOR, -1).map { |dir| File.join(dir.empty? ? "." : dir, @name) }
            .find { |file| File.file?(file) && File.executable?(file) }
      end

      def not_found
        raise Error, "#{@name}: is a directory; give the Ruby script to run" if File.directory?(@name)
        raise Error, "#{@name}: is no regular file; give the path of a Ruby script" if File.exist?(@name)

        raise Error, "#{@name}: no such script, and no such command in PATH; give the path of a Ruby script"
      end

      # A Ruby, or a version manager's wrapper of one.
      def ruby?
        File.basename(File.realpath(@file)).match?(RUBY_NAME) && (elf?(@head) || @head.start_with?("#!"))
      end

      def elf?(head)
        head.start_with?(ELF)
      end

      def check
        if ruby?
          check_same(File.realpath(@file))
        elsif elf?(@head)
          refuse("is a compiled program")
        elsif @head.start_with?("#!")
          check_shebang(@head[2..].lines.first.to_s.split)
        end
      end

      def check_shebang(words)
        words.shift if words.first && File.basename(words.first) == "env"
        words.shift while words.first&.start_with?("-") || words.first&.include?("=")
        interpreter = words.first || "nothing"
        refuse("runs under #{interpreter}") unless File.basename(interpreter).match?(RUBY_NAME)
        check_same(File.realpath(interpreter)) if interpreter.include?("/") && File.exist?(interpreter)
      end

      # The extension fits the Ruby it was installed for, and no other. A wrapper finds its Ruby by itself; it is taken
      # for the one that runs now.
      def check_same(ruby)
        return if ruby == File.realpath(RbConfig.ruby) || !elf?(File.binread(ruby, ELF.bytesize) || "")

        raise Error, "#{@name}: runs under #{ruby}, and this ratrace belongs to #{RbConfig.ruby}; install the gem there"
      end

      def refuse(what)
        raise Error, "#{@name}: #{what}, not a Ruby script; give the Ruby script it starts, or `ruby` and its arguments"
      end
    end
  end
end
