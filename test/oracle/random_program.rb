# frozen_string_literal: true

module Oracle
  # Writes a random program that calls its methods in every way that ends, suspends, repeats or throws away frames, and
  # at many points asks Probe which methods are open. One seed, one program: ruby test/oracle/random_program.rb SEED
  class RandomProgram
    METHODS = 12
    # Calls and overflows one run may make, and how deep methods call each other.
    CALLS = 300
    OVERFLOWS = 3
    DEPTH = 7
    NESTED = 20 # calls that start again at depth 1, so that only what is meant to overflows the stack
    # How deep statements nest in one method.
    NESTING = 2
    PROBE = File.join(__dir__, "probe.rb")

    # Statements around other statements: STATEMENTS stands for some of those. The number of open methods is bounded by
    # `d`; `$calls` and `$overflows` bound the rest.
    SHAPES = {
      each: "[1, 2].each do\nSTATEMENTS\nend",
      each_with_index: "[1, 2].each_with_index do |_item, _index|\nSTATEMENTS\nend",
      map: "[1, 2].map do |item|\nSTATEMENTS\nitem\nend",
      sort_by: "[2, 1].sort_by do |item|\nSTATEMENTS\nitem\nend",
      sort: "[2, 1].sort do |left, right|\nSTATEMENTS\nleft <=> right\nend",
      inject: "[1, 2, 3].inject do |left, right|\nSTATEMENTS\nleft + right\nend",
      gsub: "\"ab\".gsub(/[ab]/) do |letter|\nSTATEMENTS\nletter\nend",
      next: "[1, 2].each do |item|\nnext if item == 1\n\nSTATEMENTS\nend",
      break: "[1, 2].each do |item|\nSTATEMENTS\nbreak if item == 1\nend",
      break_loop: "loop do\nSTATEMENTS\nbreak\nend",
      redo: "turns = 0\n[1].each do\nturns += 1\nSTATEMENTS\nredo if turns < 2\nend",
      tap: "d.tap do\nSTATEMENTS\nend",
      times: "1.times do\nSTATEMENTS\nend",
      catch: "catch(:out) do\nSTATEMENTS\nthrow :out if $calls.even?\nSTATEMENTS\nend",
      throw_through_c: "catch(:out) do\n[1].each { [2].map { throw :out } }\nend\nSTATEMENTS",
      rescue: "begin\nSTATEMENTS\nraise \"random\" if $calls.odd?\nrescue RuntimeError\nSTATEMENTS\nend",
      raise_through_c: "begin\n[2, 1].sort_by do |item|\nSTATEMENTS\nraise IOError if item == 1\nitem\nend\n" \
                       "rescue IOError\nSTATEMENTS\nend",
      ensure: "begin\nSTATEMENTS\nensure\nSTATEMENTS\nend",
      raise_ensure: "begin\nbegin\nSTATEMENTS\nraise KeyError\nensure\nSTATEMENTS\nend\nrescue KeyError\nSTATEMENTS\nend",
      retry: "tries = 0\nbegin\ntries += 1\nSTATEMENTS\nraise ArgumentError if tries < 2\nrescue ArgumentError\nretry\nend",
      overflow: "begin\nover_NUMBER(0) if ($overflows -= 1) >= 0\nSTATEMENTS\nrescue SystemStackError\nSTATEMENTS\nend",
      overflow_in_block: "begin\n[1].each { over_NUMBER(0) } if ($overflows -= 1) >= 0\n" \
                         "rescue SystemStackError\n[1].each do\nSTATEMENTS\nend\nend\nSTATEMENTS",
      fiber: "fiber = Fiber.new do\nSTATEMENTS\nFiber.yield\nSTATEMENTS\nend\nfiber.resume\nSTATEMENTS\nfiber.resume",
      fiber_abandoned: "Fiber.new do\nSTATEMENTS\nFiber.yield\nend.resume",
      fiber_kept: "fiber = Fiber.new do\nSTATEMENTS\nFiber.yield\nend\nfiber.resume\n$kept << fiber",
      fiber_raise: "fiber = Fiber.new do\nSTATEMENTS\nFiber.yield\nrescue EncodingError\nSTATEMENTS\nend\n" \
                   "fiber.resume\nfiber.raise(EncodingError)",
      fiber_overflow: "fiber = Fiber.new do\nover_NUMBER(0) if ($overflows -= 1) >= 0\nrescue SystemStackError\n" \
                      "STATEMENTS\nend\nfiber.resume\nSTATEMENTS",
      thread: "Thread.new do\nSTATEMENTS\nend.join",
      thread_kill: "queue = Queue.new\nthread = Thread.new do\nSTATEMENTS\nqueue.pop\nensure\nSTATEMENTS\nend\n" \
                   "Thread.pass until queue.num_waiting == 1 || !thread.alive?\nthread.kill.join",
      thread_raise: "queue = Queue.new\nthread = Thread.new do\nSTATEMENTS\n[1].each { queue.pop }\n" \
                    "rescue EOFError\nSTATEMENTS\nend\nThread.pass until queue.num_waiting == 1 || !thread.alive?\n" \
                    "thread.raise(EOFError)\nthread.join",
      enumerator: "numbers = Enumerator.new do |yielder|\nSTATEMENTS\nyielder << 1\nSTATEMENTS\nyielder << 2\nend\n" \
                  "numbers.next\nSTATEMENTS\nnumbers.next",
      enumerator_inside: "Enumerator.new { |yielder| yielder << 1 }.each do\nSTATEMENTS\nend",
      lazy: "(1..4).lazy.map do |item|\nSTATEMENTS\nitem\nend.select do |item|\nSTATEMENTS\nitem.odd?\nend.first(1)",
      hash_default: "Hash.new do |hash, key|\nSTATEMENTS\nhash[key] = 1\nend[d]",
      instance_eval: "Object.new.instance_eval do\nSTATEMENTS\nend",
      instance_exec: "instance_exec(1) do |_one|\nSTATEMENTS\nend",
      proc: "proc do\nSTATEMENTS\nend.call",
      lambda_return: "lambda do\nSTATEMENTS\nreturn 1 if $calls.odd?\n\nSTATEMENTS\nend.call",
      yielding: "y_NUMBER(d - 1) do\nSTATEMENTS\nend",
      yielding_break: "y_NUMBER(d - 1) do\nSTATEMENTS\nbreak\nend"
    }.freeze
    # Only where a `return` means the method: not in a block that outlives it.
    RETURNS = {
      return_from_block: "[1, 2].each do\nSTATEMENTS\nreturn d if $calls.odd?\nend",
      return_through_c: "[2, 1].sort_by do |item|\nSTATEMENTS\nreturn d if $calls.even?\n\nitem\nend",
      return_and_ensure: "begin\nSTATEMENTS\nreturn d if $calls.odd?\nensure\nSTATEMENTS\nend"
    }.freeze
    ESCAPING = %i[fiber fiber_abandoned fiber_kept fiber_raise fiber_overflow thread thread_kill thread_raise enumerator lazy].freeze
    CALL_FORMS = [
      "m_NUMBER(d - 1)", "m_NUMBER(d - 1)", "send(:m_NUMBER, d - 1)", "method(:m_NUMBER).call(d - 1)",
      "Made.new.dm_NUMBER(d - 1)", "Made.new.dm_NUMBER(d - 1)", "Ghost.new.absent_NUMBER(d - 1)",
      "[Made.new].each(&:z_NUMBER)", "Heir.new.s_NUMBER(d - 1)", "eval(\"m_NUMBER(d - 1)\", binding, \"(random eval)\", 1)",
      "eval(\"[1].each { m_NUMBER(d - 1) }\", binding, \"(random eval)\", 1)", "[1].each { m_NUMBER(d - 1) }",
      "[Ordered.new(2), Ordered.new(1)].min", "[d - 1].each(&method(:m_NUMBER))", "GC.start if ($calls % 50).zero?"
    ].freeze

    def initialize(seed)
      @random = Random.new(seed)
      @lines = []
      @probes = 0
      @variables = 0
    end

    def source
      head
      METHODS.times { |number| methods(number) }
      heirs
      made
      probes
      run
      "#{@lines.join("\n")}\n"
    end

    private

    def head
      emit "# A random program.", "", "require #{PROBE.dump}", "",
           "Probe.setup(__FILE__, ENV.fetch(\"PROBE_OUT\", nil))",
           "$calls = #{CALLS}", "$nested = #{NESTED}", "$overflows = #{OVERFLOWS}", "$kept = []", "",
           "class Ghost", "def method_missing(name, *arguments) = m_by_number(name.to_s[/\\d+/], *arguments)", "",
           "def respond_to_missing?(*) = true", "",
           "def m_by_number(number, d) = send(\"m_\#{number}\", d)", "end", "",
           "class Ordered", "include Comparable", "attr_reader :number", "",
           "def initialize(number) = @number = number", "", "def <=>(other)", probe, "number <=> other.number", "end",
           "end", ""
    end

    def methods(number)
      method("m_#{number}(d)") { emit_statements(NESTING, returns: true) }
      emit "def y_#{number}(d, &block)", "return yield if d <= 0", ""
      emit_statements(1, returns: true)
      emit pick(["yield", "y_#{number}(d - 1) { yield }", "[1].each { yield }", "[1].each(&block)"]), "end", ""
      emit "def over_#{number}(depth) = #{pick(["over_#{number}(depth + 1)", "[depth].each { |item| over_#{number}(item) }",
                                                  "over_#{(number + 1) % METHODS}(depth) + 1"])}", ""
    end

    def heirs
      emit "class Forebear"
      METHODS.times { |number| method("s_#{number}(d)") { emit_statements(1, returns: true) } }
      emit "end", "", "class Heir < Forebear"
      METHODS.times { |number| method("s_#{number}(d)") { emit "[1].each { super(d) }", probe } }
      emit "end", ""
    end

    def made
      emit "class Made"
      METHODS.times do |number|
        emit "define_method(:dm_#{number}) do |d|"
        first = @lines.size
        guard("next")
        emit_statements(NESTING, returns: false)
        emit "end", "Probe.body(\"dm_#{number}\", #{first}..#{@lines.size + 1})"
        emit "def z_#{number} = m_#{number}(($nested -= 1).positive? ? 1 : 0)", ""
      end
      emit "end", ""
    end

    def probes
      @last_probe = probe
      @probes.times { |number| emit "def probe_#{number} = Probe.take" }
      emit ""
    end

    def run
      emit "d = #{DEPTH}", "while $calls.positive?", "$calls -= 1"
      METHODS.times { |number| emit "m_#{number}(d)" }
      emit @last_probe, "end", "puts \"done\""
    end

    def method(head)
      emit "def #{head}"
      guard("return")
      yield
      emit "d", "end", ""
    end

    def guard(leave)
      emit "#{leave} d if d <= 0 || ($calls -= 1).negative?", ""
    end

    def emit_statements(nesting, returns:)
      emit(*statements(nesting, returns).split("\n", -1))
    end

    def statements(nesting, returns)
      Array.new(1 + @random.rand(2)) { statement(nesting, returns) }.join("\n")
    end

    def statement(nesting, returns)
      return pick([probe, call, "#{call}\n#{probe}"]) if nesting.zero?

      shapes = returns ? SHAPES.merge(RETURNS) : SHAPES
      name = pick(shapes.keys)
      inner = returns && !ESCAPING.include?(name) && name != :lambda_return
      own_variables(shapes.fetch(name)).gsub("NUMBER") { @random.rand(METHODS).to_s }
                                       .gsub("STATEMENTS") { statements(nesting - 1, inner) }
    end

    # Blocks see the variables around them, so each statement has its own.
    def own_variables(shape)
      number = (@variables += 1)
      shape.gsub(/\b(fiber|thread|queue|numbers|tries|turns)\b/) { "#{_1}#{number}" }
    end

    def call
      pick(CALL_FORMS).gsub("NUMBER") { @random.rand(METHODS).to_s }
    end

    def probe
      "probe_#{(@probes += 1) - 1}"
    end

    def emit(*lines)
      @lines.concat(lines)
    end

    def pick(list)
      list[@random.rand(list.size)]
    end
  end
end

puts Oracle::RandomProgram.new(Integer(ARGV.fetch(0))).source if $PROGRAM_NAME == __FILE__
