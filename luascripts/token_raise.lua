-- token_raise: raises the token counter of a lock to at least a given token, on behalf of the holder.
--
-- KEYS[1] lock     hash    owner -> hold count
-- KEYS[2] counter  string  the highest fencing token
-- ARGV[1] holder   text    the owner's field in the hash; it ends in ":write" for a write hold
-- ARGV[2] token    count   the minimum of the counter
--
-- Returns 1 if the counter is now at the token or above.
-- Returns -2: the holder does not hold the lock; nothing was changed.
-- Returns -4: the lock or the counter has the wrong type; nothing was changed.
--
-- Safe to repeat, and in any order: the counter never decreases. A delayed duplicate that arrives when another owner holds the
-- lock changes nothing, because the token of that owner may be lower.

local lock, counter = KEYS[1], KEYS[2]
local holder, token = ARGV[1], tonumber(ARGV[2])

local held = redis.pcall('HEXISTS', lock, holder)
if type(held) == 'table' then
  if string.find(held.err, 'WRONGTYPE', 1, true) then return -4 end
  return held
end
redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
if held == 0 then return -2 end
local text = redis.call('GET', counter)
if text and not string.find(text, '^%d+$') then return -4 end
local latest = tonumber(text)
if not latest or latest < token then redis.call('SET', counter, string.format('%.0f', token)) end
return 1
