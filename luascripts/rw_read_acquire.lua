-- rw_read_acquire: an owner reads, or re-enters.
-- include: token, rw
--
-- KEYS[1] lock      hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] wish      string  "<owner> <since ms>" of a waiting writer
-- KEYS[3] turn      string  "<owner> <since ms> <start ms>": the turn of waiting readers
-- KEYS[4] never     string  never there (include_rw)
-- KEYS[5] counter   string  the highest fencing token; only with fencing
-- ARGV[1] owner   text    "<client uuid>:<number>"
-- ARGV[2] lease   ms      how long this reader's hold lives without a renewal
-- ARGV[3] want    count   the read holds that must result; 1 for the first
-- ARGV[4] writer  text    the owner under which the caller has the write lock; may be empty
-- ARGV[5] waited  ms      how long the caller has been waiting
-- ARGV[6] yield   count   1: wait behind a writer that came before; 0: do not
-- ARGV[7] beside  text    what the keys of read leases begin with
-- ARGV[8] stay    ms      how long its claim to a turn lives; 0: it makes none
--
-- Returns a string when the owner reads `want` times now: the token that all readers
-- have until the next writer, larger than that of the latest one; "0" without fencing or
-- for a re-entry.
-- Returns n >= 0: a writer has the lock, or waits and came before the caller; n ms are left of
-- its lease, or until it counts as dead.
-- Returns -1: a writer has the lock, and the key has no expiry.
-- Returns {n, 0, wait}: as n, and a writer's client may keep the lock although no owner uses it (include_rw).
-- Returns -2: a re-entry found no hold of this owner; it was lost.
-- Returns -4: the key holds something else; nothing was done.
--
-- A reader that is refused claims a turn, if no reader that came before has claimed one. When
-- a writer leaves, that reader's turn begins: no writer enters before that reader, for 100 ms,
-- and readers that came before the turn began do not wait behind a waiting writer. If the lease of
-- the writer ends instead, the question of the next writer begins the turn. Safe to repeat.
local lock, wish, turn, never, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local writer, waited, yield, beside, stay = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], tonumber(ARGV[8])

local mode, writes = side(lock)
if mode == nil then return writes end
local count = mode and tonumber(redis.call('HGET', lock, owner)) or 0 -- mutant: operand 2: speed
if lives(lock, beside, owner, count) == 0 then count = 0 end -- its lease is over: it is dead
local reader, since, start, rest = turned(turn)
if count == 0 then
  if want > 1 then
    redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
    return -2
  end
  local time = redis.call('TIME')
  local arrived = time[1] * 1000 + math.floor(time[2] / 1000) - waited
  if reader == owner then arrived = math.min(arrived, since) end
  local left
  if mode == 'write' then
    if redis.call('HEXISTS', lock, writer .. ':write') == 0 then left, start = redis.call('PTTL', lock), one_passed() end
  elseif yield == '1' then
    local first, came = wished(wish)
    if first and came < arrived and start < arrived then left = redis.call('PTTL', wish) end
  end
  if left then
    -- mutant: operand 1, border 1: SET refuses PX 0
    if stay > 0 and (reader == '' or reader == owner or arrived < since) then turns(turn, owner, arrived, start, stay) end
    if mode == 'write' then return busy(lock, left, writes, owner, stay > 0) end
    return left
  end
end

local token = '0'
if counter and want == 1 then token = latest_token(counter) or next_token(counter, redis.call('TIME'), nil, 0) end

-- Neither this owner's lease nor the lock's ever gets shorter.
local left = redis.call('PTTL', lock)
lease = math.max(lease, lives(lock, beside, owner, count))
if count > 0 then redis.call('HDEL', lock, '') end -- no such field: a first write that memory limits let through
if not mode then redis.call('HSET', lock, 'mode', 'read') end
redis.call('HSET', lock, owner, want)
local expiry = redis.pcall('PEXPIRE', lock, math.max(left, lease))
local denied = type(expiry) == 'table' and expiry or leased(beside, owner, count, want, lease)
if denied then
  -- Without the right to set them there would be a reader without a lease.
  if count > 0 then
    redis.call('HSET', lock, owner, count)
  else
    redis.call('HDEL', lock, owner)
    if not mode then redis.call('DEL', lock) end
  end
  return denied
end
if reader == owner then
  -- The owner had its turn. Other readers that came before the turn began may follow.
  if start > one_passed() then turns(turn, '', 0, start, rest) else redis.pcall('DEL', turn) end
end
return token
