-- leader_read: reads the value of a leader.
--
-- KEYS[1] store hash token, value, number, by, since (leader_post)
--
-- Returns {token, value, since, left}: since is the server's time in ms at which the value was published, left the ms until it
-- expires; -1 if it does not.
-- Returns 0 if no value is published.
-- Returns -4: the key has the wrong type.
--
-- Changes nothing.
local store = KEYS[1]

local fields = redis.pcall('HMGET', store, 'token', 'value', 'since')
if fields.err then
  if string.find(fields.err, 'WRONGTYPE', 1, true) then return -4 end
  return fields
end
if not fields[1] or not fields[2] or not fields[3] then return 0 end
return {fields[1], fields[2], fields[3], redis.call('PTTL', store)}
