# frozen_string_literal: true

require "json"
require_relative "../ratrace"
require_relative "cli/text"
require_relative "receiver/access"
require_relative "receiver/errors"
require_relative "receiver/finalizing"
require_relative "receiver/page"
require_relative "receiver/report"
require_relative "receiver/store"

module Ratrace
  # Takes segments that a small team's services ship, and shows them: a Rack app. `ratrace serve` runs it on Puma.
  #
  #   PUT  /segments/NAME.ratrace       a segment, application/octet-stream; 201, or 200 when it is there already
  #   POST /segments                    the same, under a name made from what it says of itself
  #   POST /finalize                    what a shipper tells of a stored segment, a JSON object
  #   GET  /segments/NAME.ratrace       the file
  #   GET  /, /recordings.json          what is there
  #   GET  /recordings/NAME.ratrace     its report; with .json behind it as JSON
  #   GET  /health                      "ok" to anybody
  #
  # What a client did wrong is told in one line of text. Pages hold no scripts and load nothing but /style.css; names in
  # them are whatever a recorded program chose, and are escaped.
  #
  # Threads: any number.
  class Receiver
    SEGMENT_MAX = 256 * 1024 * 1024
    JSON_MAX = 64 * 1024
    KEY = /\A[\x21-\x7e]{1,255}\z/.freeze
    STYLE = File.read(File.join(__dir__, "receiver/style.css")).freeze

    # Sent with every answer. The pages are their own world: nothing foreign is loaded, framed, or told of them.
    HEADERS = {
      "content-security-policy" => "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; " \
                                   "form-action 'none'; frame-ancestors 'none'",
      "x-content-type-options" => "nosniff",
      "referrer-policy" => "no-referrer",
      "cross-origin-resource-policy" => "same-origin",
      "cache-control" => "no-store"
    }.freeze

    # @param store [Store]
    # @param access [Access]
    # @param report [Report]
    # @param segment_max [Integer] bytes of one upload
    # @param log [#puts] a line for each upload
    def initialize(store:, access:, report:, segment_max: SEGMENT_MAX, log: $stdout)
      @store = store
      @access = access
      @report = report
      @segment_max = segment_max
      @log = log
      @finalizing = Finalizing.new(store)
    end

    # @param env [Hash] of Rack
    # @return [Array] status, headers, body
    def call(env)
      env["HTTP_CONNECTION"] = "close" # one request a connection: see gate.rb
      status, headers, body = answer(env)
      [status, HEADERS.merge(headers), env["REQUEST_METHOD"] == "HEAD" ? without(body) : body]
    end

    private

    def without(body)
      body.close if body.respond_to?(:close)
      []
    end

    def answer(env)
      route(env)
    rescue Refusal => e
      say("refused #{env["REQUEST_METHOD"]} from #{env["REMOTE_ADDR"]}: #{e.message}") if e.status != 404
      text(e.status, e.message, e.headers)
    rescue Errno::ENOSPC, Errno::EDQUOT
      text(507, "the disk is full")
    rescue StandardError => e
      say("failed #{env["REQUEST_METHOD"]}: #{e.class}: #{e.message}")
      text(500, "this failed here; the log of ratrace serve says why")
    end

    def route(env)
      path = env["PATH_INFO"].to_s.b
      return text(200, "ok") if path == "/health" && allow(env, "GET", "HEAD")

      @access.check(env)
      case path
      when "/", "/recordings" then allow(env, "GET", "HEAD") && page(Page.index(*listing, env["QUERY_STRING"].to_s))
      when "/recordings.json" then allow(env, "GET", "HEAD") && json(200, Page.index_json(*listing))
      when "/style.css" then allow(env, "GET", "HEAD") && [200, { "content-type" => "text/css" }, [STYLE]]
      when "/segments" then allow(env, "POST") && store(env, nil)
      when "/finalize" then allow(env, "POST") && finalize(env)
      when %r{\A/segments/(.*)\z}nm then segment(env, Regexp.last_match(1))
      when %r{\A/recordings/(.*?)(\.json)?\z}nm then recording(env, *Regexp.last_match.captures)
      else raise Refusal.new(404, "there is no such page")
      end
    end

    def allow(env, *methods)
      return true if methods.include?(env["REQUEST_METHOD"])

      raise Refusal.new(405, "use #{methods.join(" or ")} here", "allow" => methods.join(", "))
    end

    # -------------------------------------------------------------- taking

    def segment(env, name)
      allow(env, "GET", "HEAD", "PUT", "POST")
      %w[PUT POST].include?(env["REQUEST_METHOD"]) ? store(env, Store.check_name(name)) : download(name)
    end

    def store(env, name)
      content_type(env, "application/octet-stream")
      record, fresh = @store.add(env["rack.input"], name: name, key: key(env), max: @segment_max)
      say("stored #{record.name} from #{env["REMOTE_ADDR"]}: #{record.size} bytes, #{record.events} events") if fresh
      json(fresh ? 201 : 200, { name: record.name, size: record.size, sha256: record.sha256,
                                status: fresh ? "stored" : "stored before" })
    end

    def finalize(env)
      content_type(env, "application/json")
      body = env["rack.input"]&.read(JSON_MAX + 1).to_s
      raise Refusal.new(413, "the metadata has more than #{JSON_MAX} bytes") if body.bytesize > JSON_MAX

      json(200, { status: @finalizing.call(body, key(env)) })
    end

    def key(env)
      key = env["HTTP_IDEMPOTENCY_KEY"]
      return key if key.nil? || key.match?(KEY)

      raise Refusal.new(400, "the Idempotency-Key must be 1 to 255 printable ASCII characters")
    end

    # Also what keeps another site's page from sending: its browser would have to ask first.
    def content_type(env, wanted)
      return if env["CONTENT_TYPE"].to_s.split(";").first.to_s.strip.casecmp?(wanted)

      raise Refusal.new(415, "send this as #{wanted}")
    end

    # -------------------------------------------------------------- showing

    def recording(env, name, as_json)
      allow(env, "GET", "HEAD")
      record = found(name)
      profile = @report.of(record)
      return json(200, Page.recording_json(record, profile)) if as_json

      siblings = @store.all.select { |one| one.session == record.session }
      page(Page.recording(record, siblings, profile, env["QUERY_STRING"].to_s))
    end

    def download(name)
      record = found(name)
      [200, { "content-type" => "application/octet-stream", "content-length" => record.size.to_s,
              "content-disposition" => "attachment; filename=\"#{record.name}\"" }, @store.open(record)]
    end

    def listing
      [@store.all, @store.usage]
    end

    def found(name)
      @store.find(Store.check_name(name)) || raise(Refusal.new(404, "there is no recording of that name"))
    end

    def page(html)
      [200, { "content-type" => "text/html; charset=utf-8" }, [html]]
    end

    def json(status, value)
      [status, { "content-type" => "application/json" }, ["#{JSON.generate(value)}\n"]]
    end

    def text(status, line, headers = {})
      [status, { "content-type" => "text/plain; charset=utf-8" }.merge(headers), ["#{CLI::Text.clean(line)}\n"]]
    end

    def say(line)
      @log.puts(CLI::Text.clean(line))
    rescue SystemCallError, IOError
      nil # nobody reads the log; the upload is none the worse
    end
  end
end
