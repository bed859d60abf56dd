# frozen_string_literal: true

module Ratrace
  class CLI
    # Names, times and tables as a terminal can show them.
    module Text
      UNITS = [[1_000_000_000, "s"], [1_000_000, "ms"], [1_000, "us"], [1, "ns"]].freeze
      GAP = "  "

      module_function

      # Valid UTF-8 without control characters, whatever the bytes were.
      def clean(bytes)
        text = bytes.dup.force_encoding(Encoding::UTF_8)
        text = text.scrub { |bad| bad.bytes.map { |byte| format("\\x%02X", byte) }.join }
        text.gsub(/[[:cntrl:]]/) { |control| control.inspect[1..-2] }
      end

      # "Foo#bar", "Foo.bar", an alias as "Foo#called (bar)". Of a frame open when recording started nothing more is
      # known than its names, so it has no sign between them.
      def frame(frame)
        owner, name, called, kind = frame.values_at(:owner, :method, :called, :kind)
        name = clean(name || "(unknown)")
        name = "#{clean(called)} (#{name})" if called && called != frame[:method]
        return name if kind == :special
        return [*(clean(owner) if owner), "#{name} (base)"].join(" ") if kind == :base

        owner ? "#{clean(owner)}#{kind.end_with?("singleton") ? "." : "#"}#{name}" : name
      end

      # "zone=a, team=web"
      def tags(tags)
        tags.map { |name, text| "#{clean(name)}=#{clean(text)}" }.join(", ")
      end

      def place(frame)
        frame[:file] ? "#{clean(frame[:file])}:#{frame[:line]}" : "(C)"
      end

      # Three digits and a unit: "1.23 s", "45.6 ms", "789 us", "12 ns".
      def time(nanoseconds)
        return "0" if nanoseconds.zero?

        factor, unit = UNITS.find { |size, _| nanoseconds >= size } || UNITS.last
        value = nanoseconds.fdiv(factor)
        digits = unit == "ns" || value >= 100 ? 0 : value >= 10 ? 1 : 2
        "#{count_decimal(value, digits)} #{unit}"
      end

      # "1,234,567"
      def count(number)
        number.to_s.gsub(/(?<=\d)(?=(?:\d{3})+\z)/, ",")
      end

      def count_decimal(value, digits)
        whole, fraction = format("%.#{digits}f", value).split(".")
        [count(whole), *fraction].join(".")
      end

      def share(part, whole)
        whole.zero? ? "-" : format("%.1f%%", 100.0 * part / whole)
      end

      # "1 fiber", "2 fibers"
      def number(count, noun, nouns = "#{noun}s")
        "#{count(count)} #{count == 1 ? noun : nouns}"
      end

      # Lines of a table; columns are right-aligned but the last, whose text may be of any length.
      def table(titles, rows)
        widths = titles.each_index.map { |column| [titles, *rows].map { |row| row[column].length }.max }
        [titles, *rows].map do |row|
          *cells, last = row
          [*cells.each_with_index.map { |cell, column| cell.rjust(widths[column]) }, last].join(GAP).rstrip
        end
      end
    end
  end
end
