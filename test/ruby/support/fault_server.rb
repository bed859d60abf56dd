# frozen_string_literal: true

require "openssl"
require "socket"

# An HTTP server on loopback that does what a network and a bad server can do. What becomes of a request is said by a
# block, which is given its head:
#
#   [status, headers, body]   read all of it, answer
#   a Proc                    read all of it, answer what the Proc says of it
#   :lost_answer              read and store it, then reset the connection
#   :reset                    read a part of the body, then reset
#   :black_hole               never answer, read nothing
#   :trickle                  read the body slowly, answer 200
#   :early                    answer 413 without reading the body, as far as it goes
#   :http10                   answer as an HTTP/1.0 server, and close
#   :endless                  answer 200 with a body without end
#   :garbage                  answer with what is no HTTP
#
# A request that is answered with 2xx is stored under its Idempotency-Key, as a receiver would.
class FaultServer
  Request = Struct.new(:verb, :target, :headers, :body, :at, keyword_init: true) do
    def key = headers["idempotency-key"]
    def name = headers["ratrace-segment"]
  end

  attr_reader :port, :stored

  def initialize(port: 0, context: nil, &decide)
    @decide = decide || proc { [200, {}, ""] }
    @context = context
    @lock = Mutex.new
    @requests = []
    @stored = Hash.new { |hash, key| hash[key] = [] } # key => bodies
    @connections = []
    @server = TCPServer.new("127.0.0.1", port)
    @port = @server.addr[1]
    @accepting = Thread.new { accept }
  end

  def url(path = "/in", scheme: @context ? "https" : "http")
    "#{scheme}://127.0.0.1:#{port}#{path}"
  end

  # Requests whose heads arrived, in order.
  def requests
    @lock.synchronize { @requests.dup }
  end

  def keys
    @lock.synchronize { @stored.keys.sort }
  end

  # What was stored, once for each key.
  def bodies
    @lock.synchronize { @stored.transform_values(&:first) }
  end

  def close
    @server.close
    @accepting.join
    @lock.synchronize { @connections.each { |connection| connection.close unless connection.closed? } }
  end

  private

  def accept
    loop do
      socket = @server.accept
      Thread.new(socket) { |one| serve(one) }.report_on_exception = false
    end
  rescue IOError, SystemCallError
    nil # closed
  end

  def serve(socket)
    @lock.synchronize { @connections << socket }
    io = @context ? tls(socket) : socket
    while (request = head(io))
      break unless act(io, socket, request, @decide.call(request))
    end
  rescue IOError, SystemCallError, OpenSSL::SSL::SSLError
    nil # the peer went away
  ensure
    socket.close unless socket.closed?
  end

  def tls(socket)
    OpenSSL::SSL::SSLSocket.new(socket, @context).tap(&:accept)
  end

  def head(io)
    verb, target, = io.gets&.split
    return unless target

    headers = {}
    while (line = io.gets) && line != "\r\n"
      name, value = line.chomp.split(/:\s*/, 2)
      headers[name.downcase] = value
    end
    request = Request.new(verb: verb, target: target, headers: headers, at: Process.clock_gettime(Process::CLOCK_MONOTONIC))
    @lock.synchronize { @requests << request }
    request
  end

  # True: the connection goes on.
  def act(io, socket, request, action)
    case action
    when Array then answer(io, read(io, request), *action)
    when Proc then answer(io, read(io, request), *action.call(request))
    when :lost_answer then read(io, request) && store(request) && reset(socket)
    when :reset then io.readpartial(100) && reset(socket)
    when :black_hole then sleep
    when :trickle then answer(io, read(io, request, step: 2000, pause: 0.02), 200, {}, "")
    when :early then early(io, socket)
    when :http10 then read(io, request) && store(request) && io.write("HTTP/1.0 200 OK\r\n\r\nwell") && false
    when :endless then read(io, request) && endless(io, request)
    when :garbage then read(io, request) && io.write("\x00\x01garbage\r\n\r\n") && false
    else raise "no such fault: #{action.inspect}"
    end
  end

  def read(io, request, step: nil, pause: 0)
    io.write("HTTP/1.1 100 Continue\r\n\r\n") if request.headers["expect"]
    left = request.headers["content-length"].to_i
    request.body = +"".b
    while left.positive?
      piece = io.read([left, step || left].min) or raise EOFError
      request.body << piece
      left -= piece.bytesize
      sleep pause
    end
    request
  end

  def store(request)
    @lock.synchronize { @stored[request.key] << request.body }
    true
  end

  def answer(io, request, status, headers, body)
    store(request) if (200..299).cover?(status)
    lines = { "Content-Length" => body.bytesize, **headers }.map { |name, value| "#{name}: #{value}\r\n" }
    io.write("HTTP/1.1 #{status} Whatever\r\n#{lines.join}\r\n#{body}")
    headers["Connection"] != "close"
  end

  def early(io, socket)
    io.write("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    socket.close_write
    socket.readpartial(65_536) while true # as a server that lingers does
  end

  def endless(io, request)
    store(request)
    io.write("HTTP/1.1 200 OK\r\n\r\n")
    io.write("x" * 65_536) while true
  end

  def reset(socket)
    socket.setsockopt(Socket::Option.linger(true, 0))
    socket.close
    false
  end
end
