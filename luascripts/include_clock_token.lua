-- include_clock_token: the fencing tokens of locks without a token counter. It has no keys of its own.

-- clock_token returns the token of a new holder if there is no token counter: the server's clock
-- in µs. time is the reply to TIME.
local function clock_token(time)
  -- mutant: operand 1: speed
  time.text = time.text or time[1] .. string.sub('00000' .. time[2], -6) -- formatted once for all locks that a script acquires
  return time.text
end
