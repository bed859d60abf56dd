# at_exit handlers that call methods, nested handlers among them.

def leave(text) = puts(text)

at_exit { leave("first") }
at_exit do
  leave("second")
  at_exit { leave("nested") }
end
leave("body")
