# frozen_string_literal: true

require_relative "../cli/text"
require_relative "html"

module Ratrace
  class Receiver
    # What a person sees, and the same as JSON. Pure: records and profiles in, text out.
    module Page
      PAGE = 100 # recordings
      ROWS = 50  # methods, unless all are asked for
      ROWS_MAX = 5000
      SORTS = { "self" => :self_ns, "total" => :total_ns, "calls" => :calls, "max" => :max_ns }.freeze

      extend Html

      class << self
        # @param records [Array<Record>] newest first
        # @param usage [Array(Integer, Integer)] bytes in use, bytes allowed
        def index(records, usage, query)
          asked = parse_query(query)
          shown = %w[service host].reduce(records) do |some, field|
            asked[field] ? some.select { |record| record[field] == asked[field] } : some
          end
          number = asked["page"].to_i.clamp(1, [shown.size.fdiv(PAGE).ceil, 1].max)
          document("ratrace", header(nil), tag(:main, tag(:h1, "Recordings"), tag(:p, sum(shown, usage), class: "sum"),
                                               filters(records, asked), recordings(shown[(number - 1) * PAGE, PAGE].to_a),
                                               pages(shown.size, number, asked)))
        end

        def index_json(records, usage)
          { used: usage.first, allowed: usage.last, recordings: records.map(&:to_h) }
        end

        # @param siblings [Array<Record>] segments of the same process life
        def recording(record, siblings, profile, query)
          asked = parse_query(query)
          sort = SORTS.key?(asked["sort"]) ? asked["sort"] : "self"
          title = "#{record.service} on #{record.host}"
          document("#{title} - ratrace", header(title),
                   tag(:main, tag(:h1, title), facts(record, siblings, profile), losses(profile),
                       method_table(profile, sort, asked.key?("all")), threads(profile)))
        end

        def recording_json(record, profile)
          { recording: record.to_h, total_ns: profile[:total_ns], methods: clean(profile[:rows]),
            threads: clean(profile[:threads]), sessions: clean(profile[:sessions]) }
        end

        private

        def clean(value)
          case value
          when Hash then value.to_h { |key, inner| [key.is_a?(String) ? CLI::Text.clean(key) : key, clean(inner)] }
          when Array then value.map { |inner| clean(inner) }
          when String then CLI::Text.clean(value)
          else value
          end
        end

        def header(here)
          tag(:header, tag(:a, "ratrace", href: "/", class: "brand"), here && tag(:span, here))
        end

        # ---------------------------------------------------------- the list

        def sum(records, usage)
          used, allowed = usage.map { |size| bytes(size) }
          "#{CLI::Text.number(records.size, "recording")}, #{CLI::Text.number(records.sum(&:events), "event")}; " \
            "#{used} of #{allowed} used"
        end

        def filters(records, asked)
          lines = %w[service host].map do |field|
            values = records.map { |record| record[field] }.tally.sort.first(PAGE)
            next if values.size < 2 && !asked[field]

            others = asked.slice("service", "host").except(field).transform_keys(&:to_sym)
            links = [[nil, records.size], *values].map do |value, count|
              tag(:a, value || "all", " ", tag(:small, CLI::Text.count(count)),
                  href: query(**others, field.to_sym => value), class: ("on" if asked[field] == value))
            end
            tag(:p, tag(:b, field), links, class: "filter")
          end
          lines.compact
        end

        def recordings(records)
          return tag(:p, "None yet. Send segments to /segments/ with ratrace ship.", class: "empty") if records.empty?

          table([["time (UTC)"], ["service"], ["host"], ["pid", "n wide"], ["length", "n wide"], ["events", "n"], ["lost", "n"],
                 ["size", "n wide"]],
                records.map { |record| row_of(record) })
        end

        def row_of(record)
          lost = record.dropped.values.sum + record.lost.values.sum
          [time(record.start_ns), [tag(:a, record.service, href: "/recordings/#{record.name}"), badge(record)], record.host,
           record.pid.to_s, CLI::Text.time([record.end_ns - record.start_ns, 0].max), CLI::Text.count(record.events),
           tag(lost.zero? ? :span : :strong, CLI::Text.count(lost), class: lost.zero? ? "dim" : "bad"), bytes(record.size)]
        end

        def badge(record)
          return if record.ending == "closed"

          [" ", tag(:span, record.ending == "crashed" ? "crashed" : "end unknown", class: "badge")]
        end

        def pages(count, number, asked)
          last = count.fdiv(PAGE).ceil
          return if last < 2

          filter = asked.slice("service", "host").transform_keys(&:to_sym)
          tag(:p, (number > 1 ? tag(:a, "newer", href: query(**filter, page: number - 1)) : nil),
              " page #{number} of #{last} ",
              (number < last ? tag(:a, "older", href: query(**filter, page: number + 1)) : nil), class: "pages")
        end

        # ---------------------------------------------------------- a report

        def facts(record, siblings, profile)
          session = profile[:sessions].first
          pairs = [["from", time(record.start_ns)], ["length", CLI::Text.time([record.end_ns - record.start_ns, 0].max)],
                   ["events", CLI::Text.count(record.events)], ["process", process(record, session)],
                   *([["tags", CLI::Text.tags(record.tags)]] unless record.tags.empty?),
                   ["segment", segments(record, siblings)], ["ruby", session[:ruby]], ["end", ending(record)],
                   ["file", [tag(:a, "download", href: "/segments/#{record.name}"), " #{bytes(record.size)}, ",
                             tag(:a, "JSON", href: "/recordings/#{record.name}.json")]]]
          tag(:dl, pairs.map { |name, value| tag(:div, tag(:dt, name), tag(:dd, value)) })
        end

        def process(record, session)
          "#{record.pid}#{", forked by #{session[:parent_pid]}" if session[:parent_pid]}"
        end

        def ending(record)
          { "closed" => "closed", "crashed" => "a crash, recovered" }.fetch(record.ending, "unknown: no closing chunk")
        end

        def segments(record, siblings)
          siblings.sort_by(&:segment).first(PAGE).flat_map do |one|
            [one.name == record.name ? tag(:b, one.segment) : tag(:a, one.segment, href: "/recordings/#{one.name}"), " "]
          end
        end

        def losses(profile)
          rows = profile[:sessions].flat_map { |session| session[:lanes] }.flat_map do |lane|
            lane[:dropped].map { |cause, count| [lane[:lane].to_s, "dropped", cause, CLI::Text.count(count)] } +
              lane[:lost].map { |cause, count| [lane[:lane].to_s, "lost", cause, CLI::Text.count(count)] }
          end
          return tag(:p, "Nothing was dropped or lost.", class: "good") if rows.empty?

          [tag(:h2, "Missing events"), table([["lane", "n"], ["what"], ["cause"], ["events", "n"]], rows, small: true)]
        end

        def method_table(profile, sort, all)
          whole = profile[:rows].sum { |row| row[:self_ns] }
          rows = profile[:rows].sort_by { |row| [-row[SORTS.fetch(sort)], CLI::Text.frame(row[:frame])] }
          shown = rows.first(all ? ROWS_MAX : ROWS)
          more = rows.size - shown.size
          titles = [[sorted("calls", sort), "n"], [sorted("total", sort), "n"], [sorted("self", sort), "n"],
                    [sorted("max", sort), "n wide"], ["share", "n"], ["", "wide"], ["method"]]
          link = tag(:p, tag(:a, "#{CLI::Text.number(more, "method")} more", href: query(sort: sort, all: 1)))
          [tag(:h2, "Methods"), table(titles, shown.map { |row| method_row(row, whole) }), (link if more.positive? && !all)]
        end

        def sorted(title, sort)
          title == sort ? tag(:b, title) : tag(:a, title, href: query(sort: title))
        end

        def method_row(row, whole)
          share = whole.zero? ? 0 : 100.0 * row[:self_ns] / whole
          [CLI::Text.count(row[:calls]), CLI::Text.time(row[:total_ns]), CLI::Text.time(row[:self_ns]),
           CLI::Text.time(row[:max_ns]), CLI::Text.share(row[:self_ns], whole), bar(share),
           [tag(:code, CLI::Text.frame(row[:frame])), " ", tag(:small, CLI::Text.place(row[:frame]))]]
        end

        # Its width is an attribute, because the pages may have no style of their own.
        def bar(share)
          tag(:svg, tag(:rect, width: format("%.2f", share), height: 1), class: "bar", viewBox: "0 0 100 1",
                                                                        preserveAspectRatio: "none", "aria-hidden": "true")
        end

        def threads(profile)
          rows = profile[:threads].sort_by { |thread| -thread[:total_ns] }.first(PAGE).map do |thread|
            [thread[:name] ? CLI::Text.clean(thread[:name]) : "thread #{thread[:context]}", thread[:os_tid].to_s,
             CLI::Text.count(thread[:fibers]), CLI::Text.count(thread[:open]), CLI::Text.time(thread[:total_ns])]
          end
          return if rows.empty?

          titles = [["name"], ["tid", "n"], ["fibers", "n"], ["still open", "n wide"], ["total", "n"]]
          [tag(:h2, "Threads"), table(titles, rows, small: true)]
        end

        # ---------------------------------------------------------- parts

        # @param titles [Array<Array>] title, classes of the column
        def table(titles, rows, small: false)
          head = tag(:tr, titles.map { |title, kind| tag(:th, title, class: kind, scope: "col") })
          body = rows.map { |cells| tag(:tr, cells.zip(titles).map { |cell, (_, kind)| tag(:td, cell, class: kind) }) }
          tag(:div, tag(:table, tag(:thead, head), tag(:tbody, body)), class: small ? "table small" : "table")
        end

        def time(nanoseconds)
          Time.at(0, nanoseconds, :nsec).utc.strftime("%Y-%m-%d %H:%M:%S")
        end

        def bytes(size)
          unit = %w[B KiB MiB GiB TiB].each_with_index.find { |_, power| size < 1024**(power + 1) } || ["TiB", 4]
          value = size.fdiv(1024**unit.last)
          "#{format(unit.last.zero? || value >= 100 ? "%.0f" : "%.1f", value)} #{unit.first}"
        end
      end
    end
  end
end
