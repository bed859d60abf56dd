# frozen_string_literal: true

require "json"
require_relative "../cli/text"

module Ratrace
  class Receiver
    # What is known of a stored segment without reading it. Times are CLOCK_REALTIME in ns.
    Record = Struct.new(:name, :size, :sha256, :key, :received, :service, :host, :tags, :pid, :session, :segment, :start_ns,
                        :end_ns, :events, :dropped, :lost, :ending, :metadata, keyword_init: true) do
      # From an account that has no problems, for {Record.new} and {name_of}.
      def self.summary(account)
        sessions = account[:sessions]
        first = sessions.first
        lanes = sessions.flat_map { |session| session[:lanes] }
        {
          service: Ratrace::CLI::Text.clean(first[:service]), host: Ratrace::CLI::Text.clean(first[:host]),
          tags: first[:tags].to_h { |name, text| [Ratrace::CLI::Text.clean(name), Ratrace::CLI::Text.clean(text)] },
          pid: first[:pid], session: first[:id], segment: first[:segments].min,
          start_ns: sessions.map { |session| span(session).first }.min,
          end_ns: sessions.map { |session| span(session).last }.max,
          events: lanes.sum { |lane| lane[:decoded] }, dropped: causes(lanes, :dropped), lost: causes(lanes, :lost),
          ending: ending(sessions)
        }
      end

      # As the recorder names its files.
      def self.name_of(summary)
        time = Time.at(0, summary[:start_ns], :nsec).utc.strftime("%Y%m%dT%H%M%SZ")
        parts = [summary[:service], summary[:host], time, summary[:pid], summary[:session][0, 8],
                 format("%06d", summary[:segment])]
        "#{parts.map { |part| part.to_s.gsub(/[^A-Za-z0-9._]+/, "_")[0, 60] }.join("-").sub(/\A[^A-Za-z0-9_]/, "_")}.ratrace"
      end

      # @return [Record, nil] nil when there is none that could be one
      def self.load(path, name)
        record = new(**JSON.parse(File.read(path)).transform_keys(&:to_sym))
        record if record.name == name && record.size == File.size(path.delete_suffix(".json")) && record.whole?
      rescue SystemCallError, JSON::ParserError, ArgumentError, TypeError, NoMethodError
        nil
      end

      def self.span(session)
        first, last = session.values_at(:first_ns, :last_ns)
        return [session[:start_ns]] * 2 unless last.positive?

        [first, last].map { |time| time + session[:realtime_offset_ns] }
      end

      def self.causes(lanes, field)
        lanes.map { |lane| lane[field] }.reduce({}) { |all, some| all.merge(some) { |_, a, b| a + b } }
      end

      def self.ending(sessions)
        return "crashed" if sessions.any? { |session| session[:crashed] }

        sessions.all? { |session| session[:stopped] } ? "closed" : "open"
      end
      private_class_method :span, :causes, :ending

      def with_metadata(metadata)
        dup.tap { |copy| copy.metadata = metadata }
      end

      def to_json(*)
        JSON.generate(to_h)
      end

      def whole?
        [size, start_ns, end_ns, events].all?(Integer) && [sha256, service, host, session].all?(String) &&
          [tags, dropped, lost].all?(Hash)
      end
    end
  end
end
