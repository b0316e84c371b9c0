-- fence_del: deletes a key, unless a higher fencing token was seen.
-- include: fence
--
-- KEYS[1] data      string  the protected key; it may be of any type
-- KEYS[2] highest   string  the highest token seen; in the cluster slot of the data
-- ARGV[1] token     text    the caller's token, in decimal without leading zeros, at least 1
-- ARGV[2] keep      ms      how long the highest token is stored after this call; 0 is permanently
--
-- Returns 1 if the key no longer exists, whether it did before or not.
-- Returns an error FENCED <highest> if a higher token was seen, and FENCEKEY if the key of the highest token has another
-- content; nothing was written.
--
-- The highest token stays, so that an older holder cannot create the key again. The script works even if memory is full.
--
-- Safe to repeat.
local data, highest = KEYS[1], KEYS[2]
local token, keep = ARGV[1], ARGV[2]

local rejection = stale(highest, token)
if rejection then return rejection end
redis.call('PERSIST', highest) -- a write that needs no memory, so that full memory does not stop the rest
raise(highest, token, keep)
redis.call('DEL', data)
return 1
