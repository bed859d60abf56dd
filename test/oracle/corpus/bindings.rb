# Bindings kept after their method returned.

class Keeper
  def keep
    secret = inner(41)
    secret += 1
    binding
  end

  def inner(number) = number
end

kept = Keeper.new.keep
p kept.local_variable_get(:secret), kept.eval("inner(secret)"), kept.receiver.class
