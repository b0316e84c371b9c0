-- reentrant_retain: shortens the lease of a lock whose owner has finished, so that it expires soon.
--
-- KEYS[1] lock   hash  owner -> hold count
-- ARGV[1] owner  text  "<client uuid>:<number>"
-- ARGV[2] rest   ms    the longest time for which the lock stays held from now on
--
-- Returns 1 if the lock now expires within rest.
-- Returns -2: the owner does not hold the lock; nothing was changed.
-- Returns -4: the key has another type; nothing was changed.
--
-- This is how a minimum hold time keeps other owners out after the work is done. The owner holds
-- the lock until it expires, and no longer renews it.
--
-- Safe to repeat: it only shortens the lease, so a delayed duplicate changes nothing.
local lock, owner, rest = KEYS[1], ARGV[1], tonumber(ARGV[2])

local held = redis.pcall('HEXISTS', lock, owner)
if type(held) == 'table' then
  if string.find(held.err, 'WRONGTYPE', 1, true) then return -4 end
  return held -- a denied command or a busy server says nothing about the lock
end
redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
if held == 0 then return -2 end
local left = redis.call('PTTL', lock)
if left < 0 or left > rest then redis.call('PEXPIRE', lock, rest) end -- mutant: border 1: an expiry is in the future
return 1
