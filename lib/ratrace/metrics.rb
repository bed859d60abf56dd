# frozen_string_literal: true

require_relative "../ratrace"

module Ratrace
  # The numbers of {Ratrace.stats} as Prometheus text, of the process that is asked: a Rack endpoint, and the text that
  # MetricsFile writes.
  #
  #   map("/metrics/ratrace") { run Ratrace::Metrics } # in config.ru
  #
  # Each series carries the process id and the service, and the tags. Counters begin anew with a recording. A number that
  # does not apply is left out.
  module Metrics
    CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
    NANOSECOND = 1e-9

    # name, type, help, where it is in the stats, the label that tells apart the numbers of a Hash, factor
    Metric = Struct.new(:name, :type, :help, :path, :label, :factor)
    private_constant :Metric

    def self.metric(name, type, help, *path, label: nil, factor: nil)
      Metric.new("ratrace_#{name}", type, help, path, label, factor)
    end
    private_class_method :metric

    ALL = [
      metric("recording", :gauge, "Is this process being recorded?", :recording),
      metric("off", :gauge, "What does not work as it was meant to; its reason is in Ratrace.stats.", :off, label: "what"),
      metric("events_total", :counter, "Events stored.", :events),
      metric("dropped_events_total", :counter, "Events not stored, by cause.", :drops, label: "cause"),
      metric("written_events_total", :counter, "Events written to segments.", :written_events),
      metric("lost_events_total", :counter, "Events stored and given up.", :lost_events),
      metric("written_bytes_total", :counter, "Bytes written to segments.", :bytes),
      metric("encoded_bytes_total", :counter, "The same before compression.", :raw_bytes),
      metric("chunks_total", :counter, "Chunks written.", :chunks),
      metric("segments_total", :counter, "Segments closed.", :segments),
      metric("flushes_total", :counter, "Slots handed over for writing.", :flips),
      metric("failed_writes_total", :counter, "Writes the disk refused.", :failed_writes),
      metric("encode_seconds_total", :counter, "Time of our thread spent on encoding.", :encode_ns, factor: NANOSECOND),
      metric("write_seconds_total", :counter, "Time of our thread spent on writing.", :write_ns, factor: NANOSECOND),
      metric("own_cpu_ratio", :gauge, "Own share of the process's CPU time.", :cost, :share),
      metric("hook_seconds", :gauge, "Cost of one event.", :cost, :hook_ns, factor: NANOSECOND),
      metric("gvl_seconds_total", :counter, "Time we held the GVL beside the hooks.", :cost, :gvl_ns, factor: NANOSECOND),
      metric("gates_closed", :gauge, "Methods not traced now because of their cost.", :governor, :closed),
      metric("names", :gauge, "Names in the dictionary.", :names),
      metric("folded_total", :counter, "Lookups beyond the dictionary's bounds.", :folded),
      metric("lanes", :gauge, "Lanes open.", :lanes),
      metric("recovered_segments_total", :counter, "Segments of dead processes finished.", :recovered_segments),
      metric("recovered_events_total", :counter, "Events of dead processes recovered.", :recovered_events),
      metric("spool_segments", :gauge, "Closed segments that wait.", :exporter, :waiting),
      metric("spool_bytes", :gauge, "Their bytes.", :exporter, :waiting_bytes),
      metric("spool_dropped_segments_total", :counter, "Segments dropped undelivered, by the bound.", :exporter, :dropped,
             label: "bound"),
      metric("delivery_attempts_total", :counter, "Deliveries tried.", :exporter, :attempts),
      metric("delivery_failures_total", :counter, "Deliveries failed, by cause.", :exporter, :failures, label: "cause"),
      metric("delivered_segments_total", :counter, "Segments delivered.", :exporter, :delivered),
      metric("delivered_bytes_total", :counter, "Their bytes.", :exporter, :delivered_bytes),
      metric("poisoned_segments_total", :counter, "Segments refused for good.", :exporter, :poisoned)
    ].freeze

    class << self
      # Rack's interface: GET and HEAD of any path.
      def call(env)
        return [405, { "allow" => "GET, HEAD", "content-type" => "text/plain" }, ["GET or HEAD\n"]] unless %w[GET HEAD].include?(env["REQUEST_METHOD"])

        body = text
        headers = { "content-type" => CONTENT_TYPE, "content-length" => body.bytesize.to_s, "cache-control" => "no-store" }
        [200, headers, env["REQUEST_METHOD"] == "HEAD" ? [] : [body]]
      end

      # @return [String]
      def text(stats = Ratrace.stats, configuration = Ratrace.configuration)
        labels = labels(configuration)
        ALL.map { |metric| family(metric, stats.dig(*metric.path), labels) }.join
      end

      private

      def labels(configuration)
        own = { "pid" => Process.pid.to_s, "service" => configuration.service || Application.program_name }
        tags = configuration.tags.to_h { |name, value| [name.gsub(/\W/, "_").sub(/\A(?=\d)/, "_"), value] }
        tags.merge(own)
      end

      def family(metric, value, labels)
        return "" if value.nil? || (value.respond_to?(:empty?) && value.empty?)

        values = value.is_a?(Hash) ? value.map { |key, one| [labels.merge(metric.label => key.to_s), one] } : [[labels, value]]
        "# HELP #{metric.name} #{metric.help}\n# TYPE #{metric.name} #{metric.type}\n" +
          values.map { |own, one| "#{metric.name}{#{pairs(own)}} #{number(one, metric.factor)}\n" }.join
      end

      def pairs(labels)
        labels.map { |name, value| "#{name}=\"#{escape(value)}\"" }.join(",")
      end

      def escape(text)
        text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace).scrub
            .gsub(/["\\\n]/, "\"" => "\\\"", "\\" => "\\\\", "\n" => "\\n")
      end

      # A reason is a 1.
      def number(value, factor)
        case value
        when true, String then 1
        when false then 0
        when Float then value.finite? ? value * (factor || 1) : value.to_s.sub("Infinity", "Inf")
        else factor ? value * factor : value
        end
      end
    end
  end
end
