-- fence_hset: a holder sets fields of a hash, if no larger token was seen.
-- include: fence
--
-- KEYS[1]   data      hash    the guarded key
-- KEYS[2]   register  string  the largest token seen; in the slot of the data
-- ARGV[1]   token     text    the holder's, in decimal without leading zeros, at least 1
-- ARGV[2]   keep      ms      how long the register lives after this; 0 is for ever
-- ARGV[i]   field     text    for i = 3, 5, …: the name of a field
-- ARGV[i+1] value     text    and its value
--
-- Returns 1 when all are set.
-- Returns an error FENCED <highest> when a larger token was seen, and FENCEKEY
-- when the register holds something else; nothing was written.
-- Returns an error WRONGTYPE when the data is no hash; nothing was written.
--
-- Refused when memory is full, as any HSET is. Safe to repeat.
local data, register = KEYS[1], KEYS[2]
local token, keep = ARGV[1], ARGV[2]

redis.call('HLEN', data)
local refusal = stale(register, token)
if refusal then return refusal end
raise(register, token, keep)
for i = 3, #ARGV, 2 do -- one by one: unpack has a limit
  local field, value = ARGV[i], ARGV[i + 1]
  redis.call('HSET', data, field, value)
end
return 1
