-- include_token: the fencing tokens of the scripts that grant a lock. It has no keys of its own.

-- grown returns the token of a new holder, and raises the register to it if there
-- is one: the server's time in µs, or one more than the last token if the clock
-- went back. With no register the clock alone decides.
local function grown(register, time)
  local token = time[1] * 1000000 + time[2]
  if register then
    local last = tonumber(redis.call('GET', register) or nil)
    -- Beyond 2^53 numbers are too far apart to count. No clock gets there before 2255.
    if last and last >= 9007199254740991 then error('the register of fencing tokens is at ' .. string.format('%.0f', last) .. ', which is too large to go on from') end
    if last and last >= token then token = last + 1 end
    redis.call('SET', register, string.format('%.0f', token))
  end
  -- 16 digits: string.format keeps them all, tostring would round.
  return string.format('%.0f', token)
end
