# frozen_string_literal: true

require "fileutils"
require "json"
require "net/http"
require "open3"
require "rbconfig"
require "socket"
require "timeout"
require "tmpdir"

# A real `ratrace serve` on loopback, in a process of its own.
class Serving
  EXE = File.join(ROOT, "exe/ratrace")
  PATIENCE = 60
  Answer = Struct.new(:status, :headers, :body) do
    def json = JSON.parse(body)
  end

  attr_reader :dir, :port, :pid

  def initialize(dir, *options, token: nil)
    @dir = dir
    @options = options
    @token = token
    start
  end

  def start
    env = { "RATRACE_SERVE_TOKEN" => @token, "RUBYOPT" => nil }
    @out, child = IO.pipe
    @pid = Process.spawn(env, RbConfig.ruby, "-w", EXE, "serve", "--dir", @dir, "--port", "0", *@options,
                         out: child, err: child)
    child.close
    @port = nil
    @log = []
    Timeout.timeout(PATIENCE) { started(@out.gets) until @port }
    @reader = Thread.new { @out.each_line { |text| @log << text } }
  rescue StandardError
    Process.kill(:KILL, @pid)
    Process.wait(@pid)
    raise
  end

  # What it says until it listens.
  def started(line)
    raise "it did not start: #{log}" unless line

    @log << line
    @port = line[/\Alistening on http:\S+:(\d+),/, 1]&.to_i
  end

  # @return [Process::Status]
  def stop(signal = :TERM)
    return unless @pid

    Process.kill(signal, @pid)
    _, status = Timeout.timeout(PATIENCE) { Process.wait2(@pid) }
    @reader.join(PATIENCE)
    @pid = nil
    status
  end

  def restart(signal = :TERM)
    stop(signal)
    start
  end

  def log
    @log.join
  end

  # A request as bytes; the answer as it comes, until the server closes.
  def raw(bytes)
    socket = connect
    socket.write(bytes)
    answer(socket)
  ensure
    socket&.close
  end

  def connect
    TCPSocket.new("127.0.0.1", @port)
  end

  def answer(socket)
    text = Timeout.timeout(PATIENCE) { socket.read }
    head, body = text.b.split("\r\n\r\n", 2)
    line, *fields = head.to_s.split("\r\n")
    Answer.new(line.to_s[%r{\AHTTP/1.1 (\d+)}, 1].to_i, fields.to_h { |field| field.split(": ", 2).then { |name, value| [name.downcase, value] } }, body)
  rescue Errno::ECONNRESET
    Answer.new(0, {}, "")
  end

  def request(method, path, body: nil, type: nil, key: nil, auth: @token && "Bearer #{@token}",
              host: "127.0.0.1:#{@port}", length: body&.bytesize)
    fields = head(host: host, authorization: auth, content_type: type, idempotency_key: key, content_length: length)
    raw("#{method} ".b + path.b + " HTTP/1.1\r\n#{fields}\r\n".b + body.to_s.b)
  end

  def get(path, **options)
    request("GET", path, **options)
  end

  def put(name, bytes, key: nil, **options)
    request("PUT", "/segments/#{name}", body: bytes, type: "application/octet-stream", key: key, **options)
  end

  def head(**fields)
    fields.compact.map { |name, value| "#{name.to_s.split("_").map(&:capitalize).join("-")}: #{value}\r\n" }.join
  end

  def names
    Dir.children(@dir).grep(/\.ratrace\z/).sort
  end

  # Whatever else lies there.
  def leftovers
    Dir.glob("**/*", File::FNM_DOTMATCH, base: @dir).grep(/upload-|puma/)
  end
end
