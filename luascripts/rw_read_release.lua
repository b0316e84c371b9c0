-- rw_read_release: a reader gives holds back, or stops waiting.
-- include: rw
--
-- KEYS[1] lock     hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] turn     string  "<owner> <since ms> <start ms>": the turn of waiting readers
-- KEYS[3] never    string  never there (include_rw)
-- ARGV[1] owner    text   "<client uuid>:<number>"
-- ARGV[2] leave    count  the read holds that must remain; 0 ends its reading, and its claim to a turn
-- ARGV[3] beside   text   what the keys of read leases begin with
-- ARGV[4] channel  text   where waiters listen
-- ARGV[5] publish  text   the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when the owner reads `leave` times now.
-- Returns -2 when the owner does not read: it was lost, it only waited, or an
-- earlier copy of this call ended it.
-- Returns -3 when fifty dead readers were removed, and there are more to look
-- at: ask again.
-- Returns -4 when the key holds something else; nothing was done.
--
-- The last living reader deletes the hash, and with it the fields of
-- dead readers. Others remove some of those where there are many fields. With more
-- than fifty other readers the hash keeps its expiry. Safe to repeat.
local lock, turn, never = KEYS[1], KEYS[2], KEYS[3]
local owner, leave, beside = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local channel, publish = ARGV[4], ARGV[5]

local function tell() redis.pcall(publish, channel, '0') end -- a hint: its refusal must not undo a release

local reader, _, start = turned(turn)
if leave == 0 and reader == owner then
  redis.pcall('DEL', turn)
  tell() -- writers may have waited for its turn
end
local mode, answer = side(lock)
if mode == nil then return answer end
local count = tonumber(redis.call('HGET', lock, owner))
redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let through, and a replica refuses
if not count then return -2 end

local mine = lives(lock, beside, owner, count)
if leave > 0 then
  if mine == 0 then return -2 end
  redis.call('HSET', lock, owner, leave)
  local denied = leased(beside, owner, count, leave, mine) -- a partial release does not change the lease
  if denied then
    redis.call('HSET', lock, owner, count)
    return denied
  end
  return 1
end
if mode == 'write' then -- the owner reads under its own write hold, and the lease of that keeps the hash
  redis.call('HDEL', lock, owner)
else
  -- The hash lives until the end of the longest lease. If another reader has that lease, the expiry can stay.
  local carried = redis.call('PTTL', lock) - 10
  local most, all, dead = survey(lock, beside, owner, math.max(carried, 1))
  if most == 0 and not all then
    bury(lock, dead)
    return -3
  end
  if most == 0 then
    redis.call('DEL', lock)
    -- mutant: operand 2, border: speed
    if reader == '' and start > 0 then redis.pcall('DEL', turn) end -- the turn is over
    tell()
  else
    redis.call('HDEL', lock, owner)
    if all then -- survey stops at a lease that is as long as the expiry
      redis.pcall('PEXPIRE', lock, most)
      if most < 1000 then tell() end -- the reader with this lease may be dead: waiters must ask again sooner
    end
    prune(lock, beside)
  end
end
unlease(beside, owner, 1, count)
if mine == 0 then return -2 end
return 1
