-- reentrant_renew: lengthens the leases of many locks.
--
-- KEYS[i]   lock   hash   owner -> hold count; all in one slot
-- ARGV[1]   lease  ms     how long each lock lives from now
-- ARGV[i+1] owner  text   "<client uuid>:<number>", which must hold KEYS[i]
--
-- Returns a list: how many keys there are, and for each that was not renewed its
-- place i and -2 when the owner does not hold it, -4 when the key holds something else.
--
-- It never shortens a lease, and never brings a key back. Safe to repeat.
local lease = tonumber(ARGV[1])

local replies = {#KEYS}
for i, lock in ipairs(KEYS) do
  local owner = ARGV[i + 1]
  local held, why = redis.pcall('HEXISTS', lock, owner), nil -- one foreign key must not end the others
  if held == 1 then
    redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease)) -- even if it changes nothing: a replica refuses it
  elseif held == 0 then
    redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
    why = -2
  elseif string.find(held.err, 'WRONGTYPE', 1, true) then
    why = -4
  else
    return held -- denied, or busy: an error is not an answer about the lock
  end
  if why then
    replies[#replies + 1] = i
    replies[#replies + 1] = why
  end
end
return replies
