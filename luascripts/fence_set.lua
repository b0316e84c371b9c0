-- fence_set: sets a string, unless a higher fencing token was seen.
-- include: fence
--
-- KEYS[1] data      string  the protected key
-- KEYS[2] highest   string  the highest token seen; in the cluster slot of the data
-- ARGV[1] token     text    the caller's token, in decimal without leading zeros, at least 1
-- ARGV[2] keep      ms      how long the highest token is stored after this call; 0 is permanently
-- ARGV[3] value     text    the new value
--
-- Returns 1 if the string is set. An expiry of the data is removed, as by any SET.
-- Returns an error FENCED <highest> if a higher token was seen, and FENCEKEY if the key of the highest token has another
-- content; nothing was written.
-- Returns an error WRONGTYPE if the data is not a string; nothing was written.
--
-- It fails if memory is full, as any SET does.
--
-- Safe to repeat.
local data, highest = KEYS[1], KEYS[2]
local token, keep, value = ARGV[1], ARGV[2], ARGV[3]

redis.call('STRLEN', data) -- fails for another type: SET would replace even a lock of the same name
local rejection = stale(highest, token)
if rejection then return rejection end
raise(highest, token, keep)
redis.call('SET', data, value)
return 1
