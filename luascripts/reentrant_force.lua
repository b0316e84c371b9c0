-- reentrant_force: frees the lock whoever holds it.
--
-- KEYS[1] lock     hash   owner -> hold count
-- ARGV[1] channel  text   where waiters listen
-- ARGV[2] publish  text   the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when somebody held it, 0 when nobody did.
-- Returns -4 when the key holds something else; nothing was done.
local lock = KEYS[1]
local channel, publish = ARGV[1], ARGV[2]

local counts = redis.pcall('HVALS', lock)
if counts.err then
  if string.find(counts.err, 'WRONGTYPE', 1, true) then return -4 end
  return counts
end
for _, count in ipairs(counts) do
  if not string.find(count, '^[0-9]+$') then return -4 end -- some other hash, or a read/write lock
end
if redis.call('DEL', lock) == 0 then return 0 end
redis.pcall(publish, channel, '0')
return 1
