-- include_token: the fencing tokens of the scripts that grant a lock. It has no keys of its own.
-- include: clock_token

-- latest_token returns the text of the token counter, or false if there is none. If the text is not
-- a number, the script ends here with an error, before it has changed anything.
local function latest_token(counter)
  local text = redis.call('GET', counter)
  if text and (not string.find(text, '^%d+$') or #text > 19) then error('the fencing token counter is not a number') end
  return text
end

-- next_token returns the token of a new holder: the server's time in µs, or one more than the latest
-- token if the clock moved backward. The latest token is in the counter. Without a counter, it is
-- `last`, the latest one that the caller knows; nil if it knows none.
-- next_token sets the counter to `spare` more than the token. The holder may hand out the tokens in
-- between. Without a counter, spare is not used.
local function next_token(counter, time, last, spare)
  if not counter and not last then return clock_token(time) end -- mutant: never: speed
  local token = math.max(time[1] * 1000000 + time[2], (last or 0) + 1)
  if counter then
    local latest = tonumber(latest_token(counter))
    -- Above 2^53 a Lua number cannot represent each integer. No clock gets there before 2255.
    if latest and latest >= 9007199254740991 - spare then error('the fencing token counter is too large to continue: ' .. string.format('%.0f', latest)) end
    if latest and latest >= token then token = latest + 1 end
    redis.call('SET', counter, string.format('%.0f', token + spare))
  end
  -- string.format keeps all 16 digits; tostring would round.
  return string.format('%.0f', token)
end
