# frozen_string_literal: true

module Oracle
  # Says whose a method is, in text that is the same in every run.
  #
  # A traced program may override name, inspect, class or ==, or have no such methods at all (BasicObject), so each
  # question is put through the original method of Module or Kernel.
  class Names
    MODULE_NAME = Module.instance_method(:name)
    MODULE_INSPECT = Module.instance_method(:inspect)
    SINGLETON = Module.instance_method(:singleton_class?)
    SUPERCLASS = Class.instance_method(:superclass)
    SINGLETON_OF = Kernel.instance_method(:singleton_class)
    CLASS_OF = Kernel.instance_method(:class)
    SAME = BasicObject.instance_method(:equal?)

    # The owner of a method defined in +klass+ and called on +receiver+.
    def owner(klass, receiver)
      return "" if NilClass === klass
      return clean(MODULE_INSPECT.bind_call(klass)) if refinement?(klass)
      return module_name(klass) unless singleton?(klass)

      Module === receiver ? attached_module(klass, receiver) : "#<#{module_name(CLASS_OF.bind_call(receiver))}>"
    end

    def singleton?(klass)
      Module === klass && SINGLETON.bind_call(klass)
    end

    # Symbols and paths may hold any bytes; JSON may not.
    def clean(text)
      text = text.to_s.dup.force_encoding(Encoding::UTF_8)
      text.scrub { |bytes| bytes.unpack("C*").map { |byte| format("\\x%02X", byte) }.join }.gsub(/:0x\h+/, "")
    end

    private

    def refinement?(klass)
      defined?(::Refinement) ? ::Refinement === klass : false
    end

    def module_name(mod)
      name = MODULE_NAME.bind_call(mod)
      return clean(name) if name

      Class === mod ? "#<Class>" : "#<Module>"
    end

    # A class method may be inherited: the one it was defined on is the receiver or one of its superclasses.
    def attached_module(singleton, receiver)
      mod = receiver
      until SAME.bind_call(SINGLETON_OF.bind_call(mod), singleton)
        mod = Class === mod ? SUPERCLASS.bind_call(mod) : nil
        return "#<Class>" if NilClass === mod
      end
      singleton?(mod) ? "#<Class>" : module_name(mod)
    end
  end
end
