-- fence_set: a holder sets a string, if no larger token was seen.
-- include: fence
--
-- KEYS[1] data      string  the guarded key
-- KEYS[2] register  string  the largest token seen; in the slot of the data
-- ARGV[1] token     text    the holder's, in decimal without leading zeros, at least 1
-- ARGV[2] keep      ms      how long the register lives after this; 0 is for ever
-- ARGV[3] value     text    the new value
--
-- Returns 1 when it is set. An expiry of the data is gone then, as after any SET.
-- Returns an error FENCED <highest> when a larger token was seen, and FENCEKEY
-- when the register holds something else; nothing was written.
-- Returns an error WRONGTYPE when the data is no string; nothing was written.
--
-- Refused when memory is full, as any SET is. Safe to repeat.
local data, register = KEYS[1], KEYS[2]
local token, keep, value = ARGV[1], ARGV[2], ARGV[3]

redis.call('STRLEN', data) -- a SET would replace anything, also a lock of the same name
local refusal = stale(register, token)
if refusal then return refusal end
raise(register, token, keep)
redis.call('SET', data, value)
return 1
