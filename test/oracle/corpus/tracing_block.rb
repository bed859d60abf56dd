# A TracePoint of the program's own whose block calls methods: those are invisible, in balance.

def work(number) = number

def note(_number) = @noted = true

trace = TracePoint.new(:return) { |point| note(1) if point.method_id == :work }
trace.enable
work(1)
work(2)
trace.disable
p @noted
