# exit caught as SystemExit, and abort.

def leave = exit(4)

def stay
  leave
rescue SystemExit => e
  e.status
end

p stay
def give_up = abort("given up")
give_up
