# frozen_string_literal: true

require "socket"
require_relative "errors"

module Ratrace
  class Receiver
    # What stands between the network and Puma.
    #
    # Puma reads the whole of a request, a large body into a file, before it calls the app; so whoever may not come in,
    # sends without end, or takes for ever must be met earlier: where Puma reads its socket. Each accepted socket is
    # extended by Gate, which looks at the head of the request as it passes and then counts:
    #
    #   who sends no token, or asks for something else than a segment, may send SMALL bytes
    #   a segment may have `segment_max` bytes, and a little for its framing
    #   bodies being read are on the disk, so they are reserved in the store (its bound holds for both together)
    #   so many uploads at a time, so many connections; so many seconds for a request
    #
    # It only ever refuses: what it misunderstands of a request, it lets pass no more than it allows, and the app judges
    # again. After a refusal what comes is thrown away for LINGER_S, because a closed socket with unread bytes would take
    # the answer back. One request a connection (the app closes it), so a connection's bytes are a request's.
    #
    # Threads: a connection is read by one thread at a time; the gatekeeper's counts are locked.
    module Gate
      HEAD_MAX = 80 * 1024 # as Puma's
      SMALL = 96 * 1024
      RESERVE = 256 * 1024
      LINGER_S = 5
      REASONS = { 401 => "Unauthorized", 408 => "Request Timeout", 413 => "Payload Too Large",
                  431 => "Request Header Fields Too Large", 503 => "Service Unavailable",
                  507 => "Insufficient Storage" }.freeze
      WRITES = /\A(?:PUT|POST) +\/segments[\/ ]/.freeze

      # What all connections of a server share.
      class Keeper
        UPLOADS_MAX = 8
        CONNECTIONS_MAX = 128
        UPLOAD_S = 300
        REQUEST_S = 30

        attr_reader :segment_max, :upload_s

        # @param log [#puts] a line for each refusal
        def initialize(store:, access:, segment_max:, uploads_max: UPLOADS_MAX, upload_s: UPLOAD_S, log: $stdout)
          @store = store
          @access = access
          @segment_max = segment_max
          @free = uploads_max
          @upload_s = upload_s
          @log = log
          @connections = CONNECTIONS_MAX
          @lock = Mutex.new
        end

        def connect
          @lock.synchronize { @connections.positive? && (@connections -= 1) }
        end

        def disconnect
          @lock.synchronize { @connections += 1 }
        end

        def begin_upload
          @lock.synchronize { @free.positive? && (@free -= 1) }
        end

        def end_upload
          @lock.synchronize { @free += 1 }
        end

        def authorised?(header)
          @access.authorised?(header)
        end

        def reserve(bytes)
          @store.reserve(bytes)
        end

        def release(bytes)
          @store.release(bytes)
        end

        def refused(address, line)
          @log.puts("refused #{address}: #{line}")
        rescue SystemCallError, IOError
          nil # nobody reads the log
        end
      end

      # A listening socket whose connections are gated.
      class Listener < TCPServer
        attr_accessor :keeper

        def accept_nonblock(*arguments, **options)
          socket = super
          return socket unless socket.is_a?(BasicSocket)
          return socket.extend(Gate).guard(keeper) if keeper.connect

          socket.close
          raise IO::EAGAINWaitReadable, "too many connections"
        end
      end

      def guard(keeper)
        @keeper = keeper
        @head = +""
        @allowed = SMALL
        @read = @reserved = 0
        @deadline = now + Keeper::REQUEST_S
        self
      end

      def read_nonblock(size, buffer = nil, exception: true)
        throw_away if @refused
        data = super(size, *buffer, exception: exception)
        return data unless data.is_a?(String)

        @read += data.bytesize
        pass(data)
        data
      end

      def close
        super
      ensure
        leave
      end

      private

      def pass(data)
        look(data) if @head
        refuse(408, "this takes too long") if now > @deadline
        refuse(*@excess || [413, "this is too large"]) if @read > @allowed
        hold if @uploading && @read > SMALL + @reserved # below, Puma has it in memory
      end

      # The head, as far as it matters here.
      def look(data)
        @head << data
        at = @head.index(/\r?\n\r?\n/)
        return refuse(431, "the head of this request is too large") if !at && @head.bytesize > HEAD_MAX
        return unless at

        head = @head[0, at]
        @head = nil
        @read -= at # about: what is counted is the body
        judge(head)
      end

      def judge(head)
        length = head[/^content-length:[ \t]*(\d{1,19})[ \t]*\r?$/i, 1].to_i
        has_body = length.positive? || head.match?(/^transfer-encoding:/i)
        if !has_body || !head.match?(WRITES)
          @excess = [413, "this is too large"]
        elsif !@keeper.authorised?(head[/^authorization:[ \t]*([^\r\n]*)/i, 1]&.strip)
          @excess = [401, "this needs the token"]
        else
          upload(length)
        end
        refuse(*@excess) if length > @allowed
      end

      def upload(length)
        max = @keeper.segment_max
        @excess = [413, "a segment may have #{max} bytes"]
        refuse(*@excess) if length > max
        @allowed = max + (max / 4) + SMALL # chunks have a frame each; the app counts exactly
        @deadline = now + @keeper.upload_s
        refuse(503, "too many uploads at a time", "Retry-After: 1\r\n") unless @keeper.begin_upload
        @uploading = true
      end

      def hold
        @keeper.reserve(RESERVE)
        @reserved += RESERVE
      rescue Refusal => e
        refuse(e.status, e.message)
      end

      def refuse(status, line, headers = "")
        leave_upload
        @keeper.refused(remote_address.ip_address, line)
        headers += "WWW-Authenticate: Basic realm=\"ratrace\"\r\n" if status == 401
        write_nonblock("HTTP/1.1 #{status} #{REASONS.fetch(status)}\r\nContent-Type: text/plain\r\n#{headers}" \
                       "Content-Length: #{line.bytesize + 1}\r\nConnection: close\r\n\r\n#{line}\n")
        close_write
        @refused = now + LINGER_S
        throw_away
      rescue SystemCallError, IO::WaitWritable
        raise EOFError, "refused, and gone"
      end

      # Puma takes what is raised here for a connection with nothing to read, or one that ended.
      def throw_away
        raise EOFError, "refused" if now > @refused

        loop { BasicSocket.instance_method(:read_nonblock).bind_call(self, 65_536) }
      end

      def leave
        return unless @keeper

        leave_upload
        @keeper.disconnect
        @keeper = nil
      end

      def leave_upload
        return unless @uploading

        @uploading = false
        @keeper.release(@reserved)
        @keeper.end_upload
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
