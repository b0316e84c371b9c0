-- reentrant_retain: an owner that is done lets the lock stand for a while, and no longer.
--
-- KEYS[1] lock   hash  owner -> hold count
-- ARGV[1] owner  text  "<client uuid>:<number>"
-- ARGV[2] rest   ms    for how long other owners are kept out from now on
--
-- Returns 1 when the lock lives for rest at most.
-- Returns -2: the owner does not hold the lock; nothing was done.
-- Returns -4: the key holds something else; nothing was done.
--
-- It only shortens the lease, so it is safe to repeat: a copy that comes late changes
-- nothing. The owner holds the lock until it expires, and never renews it.
local lock, owner, rest = KEYS[1], ARGV[1], tonumber(ARGV[2])

local held = redis.pcall('HEXISTS', lock, owner)
if type(held) == 'table' then
  if string.find(held.err, 'WRONGTYPE', 1, true) then return -4 end
  return held -- denied, or busy: an error is not an answer about the lock
end
redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
if held == 0 then return -2 end
local left = redis.call('PTTL', lock)
if left < 0 or left > rest then redis.call('PEXPIRE', lock, rest) end -- mutant: border 1: an expiry is in the future
return 1
