# A TracePoint of the program's own beside the recorder.

def work(number) = inner(number)

def inner(number) = number

seen = []
trace = TracePoint.new(:call) { |point| seen << point.method_id if %i[work inner].include?(point.method_id) }
trace.enable { work(1) }
work(2)
p seen
