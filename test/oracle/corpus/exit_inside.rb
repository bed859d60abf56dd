# exit inside methods, with ensure on the way and a handler after it.

def leave
  inner
ensure
  tidy
end

def inner = [1].each { exit(3) }

def tidy = puts("tidy")

at_exit { tidy }
leave
