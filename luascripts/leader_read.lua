-- leader_read: reads what a leader says of itself.
--
-- KEYS[1] board hash token, value, number, by, since (leader_post)
--
-- Returns {token, value, since, left}: left is the time in ms until it is no longer said; -1 if it has no end.
-- Returns 0 when nobody says anything.
-- Returns -4: the key holds something else.
local board = KEYS[1]

local is = redis.pcall('HMGET', board, 'token', 'value', 'since')
if is.err then
  if string.find(is.err, 'WRONGTYPE', 1, true) then return -4 end
  return is
end
if not is[1] or not is[2] or not is[3] then return 0 end
return {is[1], is[2], is[3], redis.call('PTTL', board)}
