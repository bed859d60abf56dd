# frozen_string_literal: true

require_relative "errors"
require_relative "trace"

module Ratrace
  # Finds the method bodies that a scoped recording traces (Trace), and makes the TracePoints of each (rb_site.h tells
  # what they do).
  #
  # What is loaded already, in one batch at start: the code of the running frames (files that are being loaded, with
  # methods they have yet to define), of all procs (a `def` in a block that has yet to run), and the methods of all classes and modules.
  # What is loaded later: the VM hands over each newly compiled file and eval (script_compiled). It is walked for method
  # bodies, and if there are class bodies in it, TracePoints on their ends show the classes they have made: for
  # define_method, whose methods are not part of the file's code, and for methods asked for by name. The VM does not
  # tell of InstructionSequence.load_from_binary, so that is wrapped while a recording traces files.
  #
  # What cannot be traced, because the VM has no such TracePoints: functions written in C, attr_reader and its like, Struct's accessors,
  # `define_method` with a block of C. They are told in {#stats}. Not found: define_method in a block that runs after the start
  # (Class.new { define_method … }), and what compile_file and compile make.
  #
  # A TracePoint that is made throws away all JIT code of the process. So they are made while booting, and stay.
  #
  # Marks. "This body has its TracePoints" hangs, hidden, on its InstructionSequence (the VM has one object for each), and
  # for define_method, whose bodies may share one, on the class. Nothing of the host is kept alive, but frozen classes
  # with such methods: a TracePoint lives as long as the code it is on.
  #
  # Nothing here calls a method that the host may have overridden, and nothing raises into the host.
  class Targets
    ISEQ = RubyVM::InstructionSequence
    ENABLE = TracePoint.instance_method(:enable)
    NAME = Module.instance_method(:name)
    PUBLIC_METHODS = Module.instance_method(:instance_methods)
    PRIVATE_METHODS = Module.instance_method(:private_instance_methods)
    INSTANCE_METHOD = Module.instance_method(:instance_method)
    CONSTANT = Module.instance_method(:const_get)
    DEFINED = Module.instance_method(:const_defined?)
    AUTOLOAD = Module.instance_method(:autoload?)
    SINGLETON = Module.instance_method(:singleton_class?)
    FROZEN = Kernel.instance_method(:frozen?)
    CLASS_BODY = /\A(?:<class:|<module:|singleton class)/
    LIST_MAX = 100 # names in stats
    PATHS_MAX = 4096

    # Hands over what load_from_binary makes, once a recording traces files.
    module BinaryLoads
      def load_from_binary(...)
        super.tap { |iseq| Targets.compiled(iseq, nil) }
      end
    end

    @sites = {} # key => index; for the life of the process
    @frozen = {}.compare_by_identity # marks that frozen objects do not take
    @compiles = 0
    class << self
      attr_reader :sites, :frozen, :current

      # @param trace [Trace]
      # @raise [ConfigurationError] when a method asked for by its whole name cannot be traced
      def check(trace)
        new(trace).refuse_untraceable
      end

      # @param trace [Trace]
      def install(trace)
        @current = new(trace)
        @current.install
      end

      # All or none: by a TracePoint that stayed the next recording would tell each call twice.
      def remove
        return unless @current

        Thread.handle_interrupt(Object => :never) do
          @current = nil
          ObjectSpace.each_object(TracePoint) { |point| point.disable if Native.site_ours?(point) }
        end
      end

      def stats
        @current&.stats
      end

      # The VM has compiled this. An interrupt that is due waits until we are done.
      def compiled(iseq, source)
        @compiles += 1
        guarded { |targets| targets.compiled(iseq, source) }
      end

      # This class or module body has ended.
      def ended(owner)
        guarded { |targets| targets.ended(owner) }
      end

      # Does the VM tell us of new code?
      def compiles_seen?
        return true unless @current

        before = @compiles
        TOPLEVEL_BINDING.eval("nil", "(ratrace)")
        @compiles > before
      end

      private

      def guarded
        targets = @current
        return unless targets

        Thread.handle_interrupt(Object => :never) do
          yield targets
        rescue StandardError, SystemStackError, NoMemoryError => e
          targets.fail(e)
        end
      end
    end

    def initialize(trace)
      @trace = trace
      @untraceable = []
      @failures = 0
      @count = 0
      @paths = {}
      @found = {} # exact methods that were found
    end

    # "Foo#bar" that exists and is written in C is a mistake worth an answer at once.
    def refuse_untraceable
      @trace.exact_methods.each do |name, singleton, method|
        owner = find_module(name)
        owner = Native.site_singleton(owner) if owner && singleton
        next unless owner && methods_of(owner).include?(method.to_sym)

        unbound = INSTANCE_METHOD.bind_call(owner, method)
        next if ISEQ.of(unbound)

        raise ConfigurationError, "trace methods: #{name}#{singleton ? "." : "#"}#{method} cannot be traced: it is " \
                                  "#{kind_of(unbound)}, not a Ruby method; trace what calls it"
      end
    end

    def install
      @generation = Native.site_generation
      point = TracePoint.new(:script_compiled) { |at| Targets.compiled(at.instruction_sequence, at.eval_script) }
      ENABLE.bind_call(Native.site_tag(point))
      wrap_load_from_binary unless @trace.files.empty?
      install_own
      Native.site_running.each { |iseq| compiled(iseq, nil) } unless @trace.files.empty?
      scan_procs unless @trace.files.empty?
      ObjectSpace.each_object(Module) { |owner| scan(owner, true) }
      @paths.clear
    end

    def compiled(iseq, source)
      wanted = file?(iseq)
      each_body(iseq) { |body| trace_body(body) } if wanted
      return unless wanted || may_name?(iseq, source)

      trace_top_level(iseq) if source.nil?
      watch_ends(iseq)
    end

    def ended(owner)
      scan(owner, false)
    end

    def fail(error)
      @failures += 1
      @failure = "#{error.class}: #{error.message}"
      warn "ratrace: cannot trace all that was asked for: #{@failure}" if @failures == 1 && Ratrace.configuration.debug
    end

    # @return [Hash{Symbol => Object}]
    def stats
      labels = Targets.sites.invert
      counts = Native.site_counts
      { spec: @trace.to_s, sites: @count, called: counts.size,
        closed: counts.select { |count| count[1] }.map { |count| labels[count[0]] },
        left_out: counts.to_h { |index, _, _, left_out| [labels[index], left_out] }.reject { |_, count| count.zero? },
        untraceable: @untraceable.first(LIST_MAX).freeze, untraceable_count: @untraceable.size,
        not_found: not_found, failures: @failures, failure: @failure }
    end

    private

    # ---------------------------------------------------------------- code

    def file?(iseq)
      return false if @trace.files.empty?

      path = iseq.absolute_path || iseq.path
      file_at?(path) || file_at?(iseq.path)
    end

    def file_at?(path)
      return false if path.nil?

      @paths.clear if @paths.size > PATHS_MAX
      @paths.fetch(path) { @paths[path] = @trace.file?(path) }
    end

    # Could this code define a method that is asked for by name?
    def may_name?(iseq, source)
      return false if @trace.methods.empty?

      source ||= File.file?(iseq.path) ? File.binread(iseq.path) : nil
      source.nil? || @trace.named_in?(source.b)
    rescue SystemCallError
      true
    end

    # Each method's code in this code; of a method in a method only the outer, whose TracePoints see both.
    def each_body(iseq, &block)
      if method_body?(iseq)
        yield iseq
      else
        iseq.each_child { |child| each_body(child, &block) }
      end
    end

    # A file's methods outside of classes are Object's.
    def trace_top_level(iseq)
      iseq.each_child do |child|
        trace_body(child) if @trace.method?("Object", false, child.base_label) && method_body?(child)
      end
    end

    def method_body?(iseq)
      iseq.trace_points.any? { |_line, event| event == :call }
    end

    # TracePoints of an earlier recording that stayed on: beside other Ractors ObjectSpace shows none to a stop.
    def trace_body(iseq)
      generation, stayed = seen(iseq)
      return if generation == @generation

      stayed&.each { |point| point.disable if point.enabled? }
      see(iseq, [@generation, points = []])
      trace(iseq, iseq, together: false, points: points)
    end

    def watch_ends(iseq)
      classes = false
      iseq.each_child { |child| classes ||= CLASS_BODY.match?(child.label) }
      classes ||= iseq.trace_points.any? { |_line, event| event == :end } # not by label: an eval in a body has the body's
      return unless classes

      point = TracePoint.new(:end) { |at| Targets.ended(at.self) }
      ENABLE.bind_call(Native.site_tag(point), target: iseq)
    end

    def scan_procs
      ObjectSpace.each_object(Proc) do |block|
        location = block.source_location
        next unless location && file_at?(location.first)

        iseq = ISEQ.of(block)
        each_body(iseq) { |body| trace_body(body) } if iseq
      end
    end

    # ---------------------------------------------------------------- classes and modules

    # @param all [Boolean] singleton classes come by themselves, but for those of classes and modules
    def scan(owner, all)
      singleton = Native.site_singleton(owner)
      name = NAME.bind_call(owner)
      alone = all && SINGLETON.bind_call(owner)
      scan_methods(owner, alone ? nil : name, alone)
      scan_methods(singleton, name, true) if singleton
    end

    def methods_of(owner)
      PUBLIC_METHODS.bind_call(owner, false) + PRIVATE_METHODS.bind_call(owner, false)
    end

    def scan_methods(owner, name, singleton)
      named = name && @trace.owner?(name)
      return if (@trace.files.empty? && !named) || TracePoint.equal?(owner) # whose methods we call ourselves

      methods_of(owner).each do |method|
        unbound = INSTANCE_METHOD.bind_call(owner, method)
        asked = named && @trace.method?(name, singleton, method.name)
        next unless asked || file_at?(unbound.source_location&.first)

        @found[[name, singleton, method.name]] = true if asked
        trace_method(owner, method, unbound, name, singleton)
      rescue NameError
        next # undefined meanwhile, or never there: a visibility without a method
      end
    end

    def trace_method(owner, method, unbound, name, singleton)
      iseq = ISEQ.of(unbound)
      if iseq.nil?
        @untraceable << "#{name || "(anonymous)"}#{singleton ? "." : "#"}#{method} (#{kind_of(unbound)})"
      elsif method_body?(iseq)
        trace_body(iseq)
      else
        trace_define_method(owner, unbound, iseq)
      end
    end

    # An alias, a copy by module_function and the like share the method's definition, hence its TracePoint, which stays
    # from one recording to the next.
    def trace_define_method(owner, unbound, iseq, **options)
      name = unbound.original_name
      known = [owner, *Native.site_attached(owner)].any? { |of| bodies_of(of)[name]&.any? { |one| one.equal?(iseq) } }
      (bodies_of(owner)[name] ||= []) << iseq unless known
      trace(known ? nil : unbound, iseq, together: true, label: name, **options)
    end

    # Name => what define_method bodies of the class have their TracePoint.
    def bodies_of(owner)
      seen(owner) || see(owner, {})
    end

    # ---------------------------------------------------------------- TracePoints

    def trace(target, iseq, together:, label: iseq.base_label, exempt: false, points: [])
      key = "#{label} (#{iseq.path}:#{iseq.first_lineno})"
      index = Targets.sites[key] ||= Native.site_new(exempt)
      return fail(RangeError.new("there are too many methods")) unless index

      @count += 1 if Native.site_ask(index) && !exempt
      points.concat(Native.site_tracepoints(index, together)).each { |point| ENABLE.bind_call(point, target: target) } if target
    rescue ArgumentError
      @untraceable << "#{key} (no events)"
    end

    # The canary's methods, and Ractor.new.
    def install_own
      leaf = ISEQ.of(Canary.method(:leaf))
      trace(leaf, leaf, together: false, exempt: true)
      body = Canary.singleton_class.instance_method(:body)
      trace_define_method(Canary.singleton_class, body, ISEQ.of(body), exempt: true)
      return Native.site_ractors if Ractor.count > 1

      ENABLE.bind_call(Native.site_ractor_tracepoint, target: Ractor.method(:new))
    rescue ArgumentError # written in C here
      Native.site_ractors
    end

    def wrap_load_from_binary
      klass = ISEQ.singleton_class
      klass.prepend(BinaryLoads) unless klass.include?(BinaryLoads)
    end

    # ---------------------------------------------------------------- marks

    def seen(object)
      Native.site_seen(object) || Targets.frozen[object]
    end

    def see(object, what)
      Targets.frozen[object] = what if FROZEN.bind_call(object)
      Native.site_see(object, what)
    end

    # ---------------------------------------------------------------- names

    def find_module(name)
      name.split("::").reduce(Object) do |owner, part|
        return nil unless Module === owner && DEFINED.bind_call(owner, part, false) && AUTOLOAD.bind_call(owner, part).nil?

        CONSTANT.bind_call(owner, part, false)
      end
    rescue NameError
      nil
    end

    def kind_of(unbound)
      unbound.source_location ? "an attribute" : "written in C"
    end

    def not_found
      @trace.exact_methods.reject { |exact| @found[exact] }
            .map { |owner, singleton, name| "#{owner}#{singleton ? "." : "#"}#{name}" }
    end
  end
end
