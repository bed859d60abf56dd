# frozen_string_literal: true

require_relative "recording_helper"
require_relative "support/hostile_segment"

class ReportTest < Minitest::Test
  include RecordingHelper

  def test_each_method_has_its_calls
    rows = table(ratrace!("report", shop))

    assert_equal({ "Shop.open" => 1, "Shop#sell" => 4, "Shop#pay" => 3, "Shop#settle (pay)" => 1 },
                 calls(rows).slice("Shop.open", "Shop#sell", "Shop#pay", "Shop#settle (pay)"))
  end

  def test_frames_open_at_the_start_are_marked_and_have_no_calls
    base = calls(table(ratrace!("report", shop))).select { |name, _| name.include?("(base)") }

    refute_empty base
    assert_equal [0], base.values.uniq
  end

  def test_shares_of_all_methods_sum_to_the_whole
    shares = table(ratrace!("report", "--limit", "0", shop)).map { |row| row[5].to_f }

    assert_in_delta 100, shares.sum, 0.05 * shares.size
  end

  def test_names_are_shown_as_utf8_without_control_characters
    out = ratrace!("report", shop)

    assert_includes out, 'Shop#two\nlines'
    assert_match(/Shop#caf(\\xE9|é)/, out)
    assert_predicate out, :valid_encoding?
  end

  def test_rows_come_by_the_key_asked_for_and_as_many_as_asked_for
    out = ratrace!("report", "--sort", "calls", "--limit", "2", shop)

    assert_equal ["Shop#sell", "Shop#pay"], table(out).map(&:last)
    assert_match(/^\.\.\. and \d+ methods more; --limit 0 shows all$/, out)
  end

  def test_threads_have_sections_with_name_and_fibers
    out = ratrace!("report", "--threads", shop)

    assert_match(/^Thread main: tid \d+, pid \d+, 1 fiber, /, out)
    till = out[/^Thread till: tid \d+, pid \d+, 2 fibers.*?^$/m]
    assert_equal({ "Shop#pay" => 2 }, calls(table(till)))
  end

  def test_the_tree_shows_who_called_whom
    out = ratrace!("report", "--tree", "--min-share", "0", shop)
    names = out.lines(chomp: true).filter_map { |line| line[/\d%(\s+\S.*)/, 1] }
    from = names.index { |name| name.end_with?("Shop.open") }
    depth = names[from][/\A\s+/].length

    assert_equal ["Shop.open", "  Shop#sell", "    Shop#sell", "      Shop#sell", "        Shop#sell",
                  "          Shop#pay"], names[from, 6].map { |name| name[depth..] }
  end

  def test_a_tree_that_is_empty_says_why_and_how_to_see_it
    assert_match(/^Thread till: .*\nevery row is below 100.0% of the whole; --min-share 0 shows them$/,
                 ratrace!("report", "--tree", "--min-share", "100", shop))
    assert_match(/^Thread till: .*\n *calls .*\n.* Shop#pay$/, ratrace!("report", "--tree", "--min-share", "0", shop))
  end

  def test_a_report_without_calls_says_so
    Dir.mktmpdir do |dir|
      run_ruby("-rratrace", "-e", "Ratrace.start(out_dir: ARGV.first, trace: { methods: 'Nothing#at_all' }); Ratrace.stop", dir)

      [[], ["--threads"], ["--tree"]].each do |options|
        assert_match(/\Ano calls were recorded\n\nevents: /, ratrace!("report", *options, dir))
      end
    end
  end

  def test_the_tree_ends_at_the_depth_asked_for
    out = ratrace!("report", "--tree", "--depth", "1", "--min-share", "0", shop)

    refute_includes out, "Shop#sell"
  end

  def test_the_footer_says_what_the_report_rests_on
    out = ratrace!("report", shop)

    assert_match(/^events:   \d+ decoded, 0 dropped, 0 lost$/, out)
    assert_match(/^files:    1 segment of 1 process$/, out)
    assert_match(%r{^clock:    \w+, [\d,]+ ticks/s$}, out)
    assert_match(/^ruby:     #{RUBY_VERSION}.*, ratrace #{Ratrace::VERSION}, by (frame words|public calls)$/, out)
    assert_match(/^process:  program on .+, pid \d+$/, out)
    refute_match(/^warning:/, out)
  end

  def test_the_footer_names_the_services_tags
    with_file(HostileSegment.with_tags({ "zone" => "a", "b\e" => "\xFF" })) do |path|
      assert_includes ratrace!("report", path).lines(chomp: true), "tags:     shop: zone=a, b\\e=\\xFF"
    end
    refute_match(/^tags:/, ratrace!("report", shop))
  end

  def with_file(bytes)
    Dir.mktmpdir do |dir|
      path = File.join(dir, "a.ratrace")
      File.binwrite(path, bytes)
      yield path
    end
  end

  def test_a_table_of_short_names_fits_a_terminal
    assert_empty ratrace!("report", shop).lines(chomp: true).grep_v(%r{ [/<]}).select { |line| line.length > 100 }
  end

  def test_a_missing_file_is_one_line
    assert_equal ["", "ratrace: report: /nowhere: no such file or directory\n", 1], ratrace("report", "/nowhere")
  end

  def test_a_directory_without_recordings_is_one_line
    Dir.mktmpdir do |dir|
      _, err, status = ratrace("report", dir)

      assert_equal ["ratrace: report: #{dir}: no recording in it; make one with `ratrace record`, or finish a killed " \
                    "process's with `ratrace recover`\n", 1], [err, status]
    end
  end

  def test_a_file_of_something_else_is_one_line
    _, err, status = ratrace("report", __FILE__)

    assert_equal ["ratrace: report: #{__FILE__}: no recorded data in it; `ratrace verify` says what is\n", 1],
                 [err, status]
  end

  def test_too_little_memory_is_one_line
    _, err, status = ratrace("report", "--memory-max", "1M", shop)

    assert_equal ["ratrace: report: memory_max: 1048576 is not allowed; use at least 16777216 bytes\n", 2],
                 [err, status]
  end

  private

  def shop
    RecordingHelper.of(SHOP)
  end

  # The cells of each row; two spaces or more stand between columns.
  def table(out)
    lines = out.lines(chomp: true)
    first = lines.index { |line| line.lstrip.start_with?("calls") }
    lines[first + 1..].take_while { |line| !line.empty? && !line.start_with?("...") }
                      .map { |line| line.strip.split(/ {2,}/) }
  end

  def calls(rows)
    rows.to_h { |row| [row.last, row.first.delete(",").to_i] }
  end
end
