-- include_token: the fencing tokens of the scripts that grant a lock. It has no keys of its own.
-- include: stamp

-- latest_in returns the text of a register, or false if there is none. What is no number is an error before anything has changed, and stays.
local function latest_in(register)
  local text = redis.call('GET', register)
  if text and (not string.find(text, '^%d+$') or #text > 19) then error('the register of fencing tokens holds something else than a token') end
  return text
end

-- grown returns the token of a new holder, and raises the register if there is
-- one: the server's time in µs, or one more than the last token if the clock went
-- back. With no register it takes the clock, and the last token that the caller knows.
-- The register is left at `spare` tokens more, which the holder may give out; without a register, spare is not used.
local function grown(register, time, last, spare)
  if not register and not last then return stamped(time) end -- mutant: never: speed
  local token = math.max(time[1] * 1000000 + time[2], (last or 0) + 1)
  if register then
    local latest = tonumber(latest_in(register))
    -- Beyond 2^53 numbers are too far apart to count. No clock gets there before 2255.
    if latest and latest >= 9007199254740991 - spare then error('the register of fencing tokens is at ' .. string.format('%.0f', latest) .. ', which is too large to go on from') end
    if latest and latest >= token then token = latest + 1 end
    redis.call('SET', register, string.format('%.0f', token + spare))
  end
  -- 16 digits: string.format keeps them all, tostring would round.
  return string.format('%.0f', token)
end
