-- reentrant_release: an owner gives holds back.
--
-- KEYS[1] lock     hash   owner -> hold count
-- ARGV[1] owner    text   "<client uuid>:<number>"
-- ARGV[2] leave    count  the hold count that must remain; 0 frees the lock
-- ARGV[3] channel  text   where waiters listen
-- ARGV[4] publish  text   the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when the owner holds `leave` times now.
-- Returns -2 when the owner holds nothing: it was lost, or an earlier copy of
-- this call freed it.
-- Returns -4 when the key holds something else; nothing was done.
--
-- Safe to repeat, and it never touches another owner's field.
local lock = KEYS[1]
local owner, leave = ARGV[1], tonumber(ARGV[2])
local channel, publish = ARGV[3], ARGV[4]

local count = redis.pcall('HGET', lock, owner)
if type(count) == 'table' then
  if string.find(count.err, 'WRONGTYPE', 1, true) then return -4 end
  return count
end
if not count then return -2 end
if not string.find(count, '^[0-9]+$') then return -4 end

if leave == 0 then
  redis.call('HDEL', lock, owner) -- the last field takes the key with it
  redis.pcall(publish, channel, '0') -- a hint: being refused it must not undo a release
elseif tonumber(count) ~= leave then
  redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let pass
  redis.call('HSET', lock, owner, leave)
end
return 1
