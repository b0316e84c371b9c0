-- rw_write_release: a writer gives holds back, or stops waiting.
-- include: rw
--
-- KEYS[1] lock     hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] wish     string  "<owner> <since ms>" of a waiting writer
-- KEYS[3] turn     string  "<owner> <since ms> <start ms>": the turn of waiting readers
-- KEYS[4] never    string  never there (include_rw)
-- ARGV[1] owner    text    "<client uuid>:<number>"
-- ARGV[2] leave    count   the write holds that must remain; 0 ends its writing, and its wish
-- ARGV[3] beside   text    what the keys of read leases begin with
-- ARGV[4] channel  text    where waiters listen
-- ARGV[5] publish  text    the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when the owner writes `leave` times now.
-- Returns -2 when the owner does not write: it was lost, it only waited, or an
-- earlier copy of this call ended it.
-- Returns -4 when the key holds something else; nothing was done.
--
-- If the owner reads too, the lock becomes a read lock. Readers are told in any case. If a reader
-- has claimed a turn, the turn begins now, and lasts for 100 ms at most. Safe to repeat.
local lock, wish, turn, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, leave, beside = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local channel, publish = ARGV[4], ARGV[5]

local function tell() redis.pcall(publish, channel, '1') end -- a hint: its refusal must not undo a release

if leave == 0 and wished(wish) == owner then
  redis.pcall('DEL', wish)
  tell() -- readers may have waited behind it
end
local mode, answer = side(lock)
if mode == nil then return answer end
local count = redis.call('HGET', lock, owner .. ':write')
redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let through, and a replica refuses
if not count then return -2 end

if leave > 0 then
  redis.call('HSET', lock, owner .. ':write', leave)
  return 1
end
-- mutant: always, operand 2, border: speed
local most = redis.call('HLEN', lock) > 2 and survey(lock, beside, nil, math.huge) or 0
if most > 0 then
  redis.call('PEXPIRE', lock, most) -- the writer's lease ends with the writing
  redis.call('HSET', lock, 'mode', 'read')
  redis.call('HDEL', lock, owner .. ':write')
else
  redis.call('DEL', lock)
end
local reader, came = turned(turn)
if reader ~= '' then
  local time = redis.call('TIME')
  turns(turn, reader, came, time[1] * 1000 + math.floor(time[2] / 1000), 100)
end
tell()
return 1
