# An exception nobody rescues ends the program.

def fall = deeper

def deeper = raise(ArgumentError, "nobody rescues this")

def tidy = puts("tidy")

at_exit { tidy }
fall
