-- fence_hset: sets fields of a hash, unless a higher fencing token was seen.
-- include: fence
--
-- KEYS[1]   data      hash    the protected key
-- KEYS[2]   highest   string  the highest token seen; in the cluster slot of the data
-- ARGV[1]   token     text    the caller's token, in decimal without leading zeros, at least 1
-- ARGV[2]   keep      ms      how long the highest token is stored after this call; 0 is permanently
-- ARGV[i]   field     text    for i = 3, 5, …: the name of a field
-- ARGV[i+1] value     text    and its value
--
-- Returns 1 if all fields are set.
-- Returns an error FENCED <highest> if a higher token was seen, and FENCEKEY if the key of the highest token has another
-- content; nothing was written.
-- Returns an error WRONGTYPE if the data is not a hash; nothing was written.
--
-- It fails if memory is full, as any HSET does.
--
-- Safe to repeat.
local data, highest = KEYS[1], KEYS[2]
local token, keep = ARGV[1], ARGV[2]

redis.call('HLEN', data)
local rejection = stale(highest, token)
if rejection then return rejection end
raise(highest, token, keep)
for i = 3, #ARGV, 2 do -- one by one, because unpack has a limit
  local field, value = ARGV[i], ARGV[i + 1]
  redis.call('HSET', data, field, value)
end
return 1
