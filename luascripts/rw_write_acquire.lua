-- rw_write_acquire: acquires the write side of a read/write lock, or re-enters it.
-- include: token, rw
--
-- KEYS[1] lock         hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] intent       string  "<owner> <since ms>" of a waiting writer
-- KEYS[3] reservation  string  "<owner> <since ms> <start ms>" of a waiting reader, and of the batch of readers
-- KEYS[4] never        string  a key that never exists (include_rw)
-- KEYS[5] counter      string  the highest fencing token; only with fencing
-- ARGV[1] owner    text    "<client uuid>:<number>"
-- ARGV[2] lease    ms      the lease of the lock from now on
-- ARGV[3] want     count   the write hold count that must result; 1 for the first hold
-- ARGV[4] waited   ms      how long the caller has been waiting
-- ARGV[5] timeout  ms      how long the intent lives without a retry; 0 makes none, so readers that arrive later do not wait
-- ARGV[6] prefix   text    what the keys of read leases begin with
--
-- Returns a string if the owner now has `want` write holds: the fencing token, or "0" for a reentry.
-- Returns n >= 0: other owners hold the lock, and n ms are left of their longest lease, or of the
-- longest of 50 if there are more; or the lock is free, and a batch of readers lasts n ms more.
-- Returns -1: other owners hold the lock, and the key has no expiry.
-- Returns {n, 0, wait}: as n, and the writer's client may keep the lock unused (include_rw).
-- Returns -2: a reentry found no hold of this owner; the lock was lost.
-- Returns -3: 50 dead readers were removed, and there are more readers to check: call the script again.
-- Returns -4: the key is not a read/write lock; nothing was changed.
--
-- Only one writer passes a reader with a reservation. If the lease of that writer expires, the next
-- request begins the batch of readers, and a writer that sent it is refused.
--
-- Safe to repeat: `want` is the resulting hold count, not an increment.
local lock, intent, reservation, never, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local waited, timeout, prefix = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local mode, holder = read_rw(lock)
if mode == nil then return holder end
if mode == 'write' and redis.call('HEXISTS', lock, owner .. ':write') == 1 then
  -- PEXPIRE comes before HSET: it needs no memory, and after such a write Redis executes the rest of a
  -- script even if memory is full. So a reentry works then, too.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
  redis.call('HSET', lock, owner .. ':write', want)
  if want > 1 then return '0' end
  return next_token(counter, time, nil, 1)
end
if want > 1 then
  redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
  return -2
end

-- mutant: always, operand 2, operand 4: it is used only if a writer holds the lock, or is set before
local left = mode == 'write' and redis.call('PTTL', lock) or 0
if mode == 'read' then
  local longest, complete, dead = survey_readers(lock, prefix, nil, math.huge)
  complete = remove_dead(lock, dead) or complete
  if longest == 0 and not complete then return -3 end
  left = longest
  if left == 0 then
    redis.call('DEL', lock)
    mode = false
  end
end
local waiting, waiting_since = read_intent(intent)
local reader, reader_since, start, rest = read_reservation(reservation)
-- mutant: operand 3: without a reader, start is 0 or the time of a batch
if not mode and reader ~= '' and start == writer_passed() then -- the last writer did not release the lock: its lease expired
  start, rest = now, 100
  write_reservation(reservation, reader, reader_since, start, rest)
end
if not mode and reader ~= '' and reader_since <= start then
  left = rest
elseif not mode then
  local token = next_token(counter, time, nil, 1) -- the extra token is for the readers until the next writer
  redis.call('HSET', lock, 'mode', 'write', owner .. ':write', 1) -- the first write: if memory is full, it fails, and leaves nothing in Redis
  local expiry = redis.pcall('PEXPIRE', lock, lease)
  if type(expiry) == 'table' then
    redis.call('DEL', lock) -- PEXPIRE is denied: the lock would never expire
    return expiry
  end
  if waiting == owner then redis.pcall('DEL', intent) end
  if reader ~= '' then write_reservation(reservation, reader, reader_since, writer_passed(), rest) end -- this is the one writer that passes the reader
  return token
end
if timeout > 0 then -- mutant: always, border: SET rejects PX 0
  local arrived = now - waited
  if waiting == owner then arrived = math.min(arrived, waiting_since) end
  if not waiting or arrived <= waiting_since then
    redis.pcall('SET', intent, owner .. ' ' .. string.format('%.0f', arrived), 'PX', timeout) -- if the write fails, the writer waits without an intent
  end
end
return refused_by_writer(lock, left, holder, owner, timeout > 0)
