-- rw_write_acquire: an owner writes, or re-enters.
-- include: token, rw
--
-- KEYS[1] lock      hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] wish      string  "<owner> <since ms>" of a waiting writer
-- KEYS[3] turn      string  "<owner> <since ms> <start ms>": the turn of waiting readers
-- KEYS[4] never     string  never there (include_rw)
-- KEYS[5] counter   string  the highest fencing token; only with fencing
-- ARGV[1] owner   text    "<client uuid>:<number>"
-- ARGV[2] lease   ms      how long the lock lives without a renewal
-- ARGV[3] want    count   the write holds that must result; 1 for the first
-- ARGV[4] waited  ms      how long the caller has been waiting
-- ARGV[5] stay    ms      how long readers that come later wait behind it; 0: they do not
-- ARGV[6] beside  text    what the keys of read leases begin with
--
-- Returns a string when the owner writes `want` times now: the fencing token, or
-- "0" for a re-entry.
-- Returns n >= 0: others have the lock, and n ms are left of the longest of their leases, or of
-- fifty of them if there are more; or the lock is free, and a reader's turn lasts for n ms more.
-- Returns -1: others have the lock, and the key has no expiry.
-- Returns {n, 0, wait}: as n, and a writer's client may keep the lock although no owner uses it (include_rw).
-- Returns -2: a re-entry found no hold of this owner; it was lost.
-- Returns -3: it removed fifty dead readers, and there are more to look at: ask again.
-- Returns -4: the key holds something else; nothing was done.
--
-- A reader that has claimed a turn lets one writer pass. If the lease of that one ends, the next
-- writer that asks begins the turn, and is refused. Safe to repeat.
local lock, wish, turn, never, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local waited, stay, beside = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local mode, writes = side(lock)
if mode == nil then return writes end
if mode == 'write' and redis.call('HEXISTS', lock, owner .. ':write') == 1 then
  -- PEXPIRE before HSET: after a write that cannot grow memory, Redis lets the
  -- rest of the script through even when memory is full.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
  redis.call('HSET', lock, owner .. ':write', want)
  if want > 1 then return '0' end
  return next_token(counter, time, nil, 1)
end
if want > 1 then
  redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
  return -2
end

-- mutant: always, operand 2, operand 4: it is used only if a writer has the lock, or is set before
local left = mode == 'write' and redis.call('PTTL', lock) or 0
if mode == 'read' then
  local most, all, dead = survey(lock, beside, nil, math.huge)
  all = bury(lock, dead) or all
  if most == 0 and not all then return -3 end
  left = most
  if left == 0 then
    redis.call('DEL', lock)
    mode = false
  end
end
local first, since = wished(wish)
local reader, came, start, rest = turned(turn)
-- mutant: operand 3: without a reader, start is 0 or the time of a turn
if not mode and reader ~= '' and start == one_passed() then -- the writer before did not leave: its lease ended
  start, rest = now, 100
  turns(turn, reader, came, start, rest)
end
if not mode and reader ~= '' and came <= start then
  left = rest
elseif not mode then
  local token = next_token(counter, time, nil, 1) -- the extra token is for readers, until the next writer
  redis.call('HSET', lock, 'mode', 'write', owner .. ':write', 1) -- refused here when memory is full: nothing is left in Redis
  local expiry = redis.pcall('PEXPIRE', lock, lease)
  if type(expiry) == 'table' then
    redis.call('DEL', lock) -- without the right to PEXPIRE the lock would never end
    return expiry
  end
  if first == owner then redis.pcall('DEL', wish) end
  if reader ~= '' then turns(turn, reader, came, one_passed(), rest) end -- no further writer passes that reader
  return token
end
if stay > 0 then -- mutant: always, border: SET refuses PX 0
  local arrived = now - waited
  if first == owner then arrived = math.min(arrived, since) end
  if not first or arrived <= since then
    redis.pcall('SET', wish, owner .. ' ' .. string.format('%.0f', arrived), 'PX', stay) -- a writer whose write is refused waits nevertheless
  end
end
if mode == 'write' then return busy(lock, left, writes, owner, stay > 0) end
return left
