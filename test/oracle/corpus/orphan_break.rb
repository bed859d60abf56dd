# A proc whose method is gone: LocalJumpError in place of a return.

def maker = proc { return 1 }

def runner
  maker.call
rescue LocalJumpError => e
  describe(e)
end

def describe(error) = error.reason

p runner
