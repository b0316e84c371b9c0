-- reentrant_force: frees the lock whoever holds it.
--
-- KEYS[1] lock     hash   owner -> hold count, and the line (include_line)
-- ARGV[1] channel  text   where waiters listen
-- ARGV[2] publish  text   the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when somebody held it, 0 when nobody did.
-- Returns -4 when the key holds something else; nothing was done.
local lock = KEYS[1]
local channel, publish = ARGV[1], ARGV[2]

local fields = redis.pcall('HGETALL', lock)
if fields.err then
  if string.find(fields.err, 'WRONGTYPE', 1, true) then return -4 end
  return fields
end
for i = 1, #fields, 2 do
  if fields[i] ~= 'leasehold_line' and not string.find(fields[i + 1], '^[0-9]+$') then return -4 end -- some other hash, or a read/write lock
end
if redis.call('DEL', lock) == 0 then return 0 end
redis.pcall(publish, channel, '0')
return 1
