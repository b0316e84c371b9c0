-- fence_del: a holder deletes a key, if no larger token was seen.
-- include: fence
--
-- KEYS[1] data      string  the guarded key; it may be of any type
-- KEYS[2] register  string  the largest token seen; in the slot of the data
-- ARGV[1] token     text    the holder's, in decimal without leading zeros, at least 1
-- ARGV[2] keep      ms      how long the register lives after this; 0 is for ever
--
-- Returns 1 when there is no such key now, whether there was one or not.
-- Returns an error FENCED <highest> when a larger token was seen, and FENCEKEY
-- when the register holds something else; nothing was written.
--
-- The register stays: it keeps an older holder from making the key anew.
-- It works when memory is full. Safe to repeat.
local data, register = KEYS[1], KEYS[2]
local token, keep = ARGV[1], ARGV[2]

local refusal = stale(register, token)
if refusal then return refusal end
redis.call('PERSIST', register) -- a first write that memory limits let through
raise(register, token, keep)
redis.call('DEL', data)
return 1
