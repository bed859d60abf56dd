# frozen_string_literal: true

require "test_helper"

# The C code lies in layers, each a folder of ext/ratrace. This reads the include lines and nothing else.
class LayersTest < Minitest::Test
  EXT = File.join(ROOT, "ext/ratrace")
  LAYERS = %w[base record wire model export deliver ruby].freeze
  # What a layer may include of the outside world beside libc and Linux: from this layer on.
  LIBRARIES = { %r{\Aprotobuf-c/} => "wire", /\Azstd/ => "wire", %r{\Acurl/} => "deliver", %r{\Aruby} => "ruby" }.freeze
  GENERATED = "wire/trace.pb-c.c"

  Include = Struct.new(:file, :line, :path, :quoted) do
    def layer = file[%r{\A[^/]+(?=/)}] || "ruby" # files beside the folders are the topmost
    def to_s = "#{file}:#{line} includes #{path}"
  end

  def test_a_layer_includes_only_itself_and_those_below
    wrong = ours.select { |include| LAYERS.index(include.path[%r{\A[^/]+}]) > LAYERS.index(include.layer) }

    assert_empty wrong.map(&:to_s)
  end

  def test_our_headers_are_named_from_the_top_folder
    wrong = includes.select { |include| include.quoted && !File.exist?(File.join(EXT, include.path)) }

    assert_empty wrong.map(&:to_s)
  end

  def test_a_library_is_known_only_from_its_layer_up
    wrong = includes.select do |include|
      LIBRARIES.any? { |name, layer| name.match?(include.path) && LAYERS.index(include.layer) < LAYERS.index(layer) }
    end

    assert_empty wrong.map(&:to_s)
  end

  def test_every_folder_is_a_layer
    assert_empty Dir.children(EXT).select { |name| File.directory?(File.join(EXT, name)) } - LAYERS
  end

  # Objects lie in one folder, so mkmf refuses two sources of one name.
  def test_no_two_sources_share_a_name
    names = sources.grep(/\.c\z/).map { |path| File.basename(path) }

    assert_equal names.uniq, names
  end

  def test_the_built_extension_exports_only_its_init_function
    library = $LOADED_FEATURES.grep(%r{/ratrace/ratrace\.so\z}).first
    symbols = IO.popen(["nm", "--dynamic", "--defined-only", "--format=posix", library], &:readlines)

    assert_equal ["Init_ratrace"], symbols.map { |line| line[/\A\S+/] }
  end

  # Their locks are inherited by a child that is forked meanwhile, and nobody gives them back there.
  def test_the_built_extension_uses_nothing_of_the_c_library_that_locks_time_zones
    library = $LOADED_FEATURES.grep(%r{/ratrace/ratrace\.so\z}).first
    symbols = IO.popen(["nm", "--dynamic", "--undefined-only", "--format=posix", library], &:readlines)

    assert_empty symbols.grep(/\A(?:gmtime|localtime|timegm|timelocal|mktime|ctime|asctime|tzset|strftime|strptime)/)
  end

  private

  def ours
    includes.select { |include| LAYERS.any? { |layer| include.path.start_with?("#{layer}/") } && include.quoted }
  end

  def includes
    sources.flat_map do |file|
      File.foreach(File.join(EXT, file), encoding: "UTF-8").with_index(1).filter_map do |text, line|
        next unless text =~ /\A\s*#\s*include\s+(["<])([^">]+)/

        Include.new(file, line, $2, $1 == '"')
      end
    end
  end

  def sources
    Dir.glob("**/*.{c,h}", base: EXT).sort - [GENERATED]
  end
end
