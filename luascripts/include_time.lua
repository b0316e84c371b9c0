-- include_time: the server's clock. It has no keys of its own.

-- clock returns the server's time in ms, and the reply to TIME: seconds and µs. time is an earlier
-- reply to TIME; with nil, clock calls TIME.
local function clock(time)
  time = time or redis.call('TIME') -- mutant: operand 1: speed
  return time[1] * 1000 + math.floor(time[2] / 1000), time
end
