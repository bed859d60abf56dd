# frozen_string_literal: true

module Oracle
  # One program of the corpus: its path and what its first comment lines say about it.
  class CorpusProgram
    FOLDER = File.join(__dir__, "corpus")

    def self.all
      Dir[File.join(FOLDER, "*.rb")].sort.map { |path| new(path) }
    end

    attr_reader :path

    def initialize(path)
      @path = path
    end

    def name
      File.basename(path, ".rb")
    end

    # `# name: no (reason)` says that a mode is not for this program.
    def refuses?(mode)
      header.any? { |line| line.match?(/\A# #{mode}: no \(.+\)$/) }
    end

    private

    def header
      @header ||= File.foreach(path, encoding: Encoding::UTF_8).take_while { |line| line.start_with?("#") }
    end
  end
end
