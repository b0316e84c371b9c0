-- reentrant_renew: extends the leases of many locks.
--
-- KEYS[i]   lock   hash   owner -> hold count; all keys in one cluster slot
-- ARGV[1]   lease  ms     the lease of each lock from now on; 0 only checks who holds it
-- ARGV[i+1] owner  text   "<client uuid>:<number>", which must hold KEYS[i]
--
-- Returns a list: the number of keys, and two numbers for each lock that was not renewed: its
-- index i, and -2 if the owner does not hold the lock, or -4 if the key has another type.
--
-- Safe to repeat: it never shortens a lease, and never restores a key that is gone.
local lease = tonumber(ARGV[1])

local replies = {#KEYS}
for i, lock in ipairs(KEYS) do
  local owner = ARGV[i + 1]
  local held, problem = redis.pcall('HEXISTS', lock, owner), nil -- one key of another type must not fail the other renewals
  if held == 1 and lease > 0 then
    redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease)) -- even if it changes nothing: a replica rejects the write
  elseif type(held) == 'number' then
    redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
    if held == 0 then problem = -2 end
  elseif string.find(held.err, 'WRONGTYPE', 1, true) then
    problem = -4
  else
    return held -- a denied command or a busy server says nothing about the lock
  end
  if problem then
    replies[#replies + 1] = i
    replies[#replies + 1] = problem
  end
end
return replies
