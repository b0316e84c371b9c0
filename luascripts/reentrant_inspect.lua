-- reentrant_inspect: one consistent snapshot of the lock.
--
-- KEYS[1] lock  hash  owner -> hold count
--
-- Returns {lease, field, value, field, value, …}: what is left of the lease in
-- ms (-1 no expiry, -2 no key), then the hash as it is. Changes nothing.
local lock = KEYS[1]

local reply = redis.call('HGETALL', lock)
table.insert(reply, 1, redis.call('PTTL', lock))
return reply
