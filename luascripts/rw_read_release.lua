-- rw_read_release: a reader gives holds back.
--
-- KEYS[1] lock     hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] never    string  never there (include_rw)
-- ARGV[1] owner    text   "<client uuid>:<number>"
-- ARGV[2] leave    count  the read holds that must remain; 0 ends its reading
-- ARGV[3] beside   text   what the keys of reading leases begin with
-- ARGV[4] channel  text   where waiters listen
-- ARGV[5] publish  text   the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when the owner reads `leave` times now.
-- Returns -2 when the owner does not read: it was lost, or an earlier copy of
-- this call ended it.
-- Returns -4 when the key holds something else; nothing was done.
--
-- The last reader who is alive takes the hash along, and with it the fields of
-- readers who died. Safe to repeat.
local lock, never = KEYS[1], KEYS[2]
local owner, leave, beside = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local channel, publish = ARGV[4], ARGV[5]

local mode, answer = side(lock)
if mode == nil then return answer end
local count = mode and tonumber(redis.call('HGET', lock, owner) or nil)
if not count then return -2 end

local mine = lives(lock, beside, owner, count)
if leave > 0 then
  if mine == 0 then return -2 end
  redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let pass
  redis.call('HSET', lock, owner, leave)
  for n = 1, leave do redis.call('PEXPIRE', timeout(beside, owner, n), mine) end -- a partial release leaves the lease be
  for n = count, leave + 1, -1 do redis.call('DEL', timeout(beside, owner, n)) end
  return 1
end
-- The hash lives on the longest lease. Who carries it need not be replaced.
local carried = redis.call('PTTL', lock) - 10
local most = longest(lock, beside, owner, math.max(carried, 1))
if mode == 'read' and most == 0 then
  redis.call('DEL', lock)
  redis.pcall(publish, channel, '0') -- a hint: being refused it must not undo a release
else
  redis.call('HDEL', lock, owner)
  if mode == 'read' and most < carried then
    redis.pcall('PEXPIRE', lock, most)
    if most < 1000 then redis.pcall(publish, channel, '0') end -- it may be a dead one: who waits must look again sooner
  end
end
for n = count, 1, -1 do redis.pcall('DEL', timeout(beside, owner, n)) end
if mine == 0 then return -2 end
return 1
