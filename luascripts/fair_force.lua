-- fair_force: frees the lock whoever holds it, and tells the first of the queue.
--
-- KEYS[1] lock      hash  owner -> hold count
-- KEYS[2] queue     list  waiting owners, first come first
-- KEYS[3] timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
-- ARGV[1] channel   text  where an owner listens is "<channel>:<owner>"
-- ARGV[2] publish   text  the command that reaches it: PUBLISH or SPUBLISH
--
-- Returns 1 when somebody held it, 0 when nobody did.
-- Returns -4 when the key holds something else; nothing was done.
--
-- Drops the dead from the head of the queue, also when nobody held the lock; the
-- living keep their places.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, publish = ARGV[1], ARGV[2]

local fields = redis.pcall('HGETALL', lock)
if fields.err then
  if string.find(fields.err, 'WRONGTYPE', 1, true) then return -4 end
  return fields
end
for i = 1, #fields, 2 do
  if fields[i] ~= 'leasehold_line' and not string.find(fields[i + 1], '^[0-9]+$') then return -4 end -- some other hash, or a read/write lock
end
local time = redis.call('TIME')
redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let pass
local first = head(queue, timeouts, time[1] * 1000 + math.floor(time[2] / 1000))
local freed = redis.call('DEL', lock)
if first then redis.pcall(publish, channel .. ':' .. first, '0') end
return freed
