-- rw_read_acquire: acquires the read side of a read/write lock, or re-enters it.
-- include: token, rw
--
-- KEYS[1] lock         hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] intent       string  "<owner> <since ms>" of a waiting writer
-- KEYS[3] reservation  string  "<owner> <since ms> <start ms>" of a waiting reader, and of the batch of readers
-- KEYS[4] never        string  a key that never exists (include_rw)
-- KEYS[5] counter      string  the highest fencing token; only with fencing
-- ARGV[1] owner        text    "<client uuid>:<number>"
-- ARGV[2] lease        ms      the lease of this reader from now on
-- ARGV[3] want         count   the read hold count that must result; 1 for the first hold
-- ARGV[4] write_owner  text    the owner under which the caller holds the write side; may be empty
-- ARGV[5] waited       ms      how long the caller has been waiting
-- ARGV[6] yield        count   1: wait behind a writer that arrived before; 0: do not
-- ARGV[7] prefix       text    what the keys of read leases begin with
-- ARGV[8] timeout      ms      how long the reservation lives without a retry; 0 makes none
--
-- Returns a string if the owner now has `want` read holds: the fencing token, or "0" without fencing or
-- for a reentry. All readers until the next writer have the same token, which is larger than that of
-- the writer before.
-- Returns n >= 0: a writer holds the lock, or waits and arrived before the caller. n ms are left until
-- the lease of the holder expires, or until the waiting writer counts as dead.
-- Returns -1: a writer holds the lock, and the key has no expiry.
-- Returns {n, 0, wait}: as n, and the writer's client may keep the lock unused (include_rw).
-- Returns -2: a reentry found no hold of this owner; the lock was lost.
-- Returns -4: the key is not a read/write lock; nothing was changed.
--
-- A reader that is refused makes a reservation, unless a reader that arrived before has one. When a
-- writer leaves, the batch begins (include_rw). If the writer's lease expires instead, the next request
-- begins the batch, whether it is to read or to write.
--
-- Safe to repeat: `want` is the resulting hold count, not an increment.
local lock, intent, reservation, never, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local write_owner, waited, yield, prefix, timeout = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], tonumber(ARGV[8])

local mode, holder = read_rw(lock)
if mode == nil then return holder end
local count = mode and tonumber(redis.call('HGET', lock, owner)) or 0 -- mutant: operand 2: speed
if lease_left(lock, prefix, owner, count) == 0 then count = 0 end -- its lease has expired
local reader, since, start, rest = read_reservation(reservation)
if count == 0 then
  if want > 1 then
    redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
    return -2
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local arrived = now - waited
  if reader == owner then arrived = math.min(arrived, since) end
  if not mode and start == writer_passed() then -- the last writer did not release the lock: its lease expired
    start, rest = now, 100
    write_reservation(reservation, reader, since, start, rest)
  end
  local left
  -- An owner that holds the write side may also read: a downgrade.
  if mode == 'write' then
    if redis.call('HEXISTS', lock, write_owner .. ':write') == 0 then left, start = redis.call('PTTL', lock), writer_passed() end
  elseif yield == '1' then -- wait behind a writer that arrived before, unless a batch includes this reader
    local waiting, intent_since = read_intent(intent)
    if waiting and intent_since < arrived and start < arrived then left = redis.call('PTTL', intent) end
  end
  if left then
    -- mutant: operand 1, border 1: SET rejects PX 0
    if timeout > 0 and (reader == '' or reader == owner or arrived < since) then write_reservation(reservation, owner, arrived, start, timeout) end
    return refused_by_writer(lock, left, holder, owner, timeout > 0)
  end
end

local token = '0' -- readers share the second of the two tokens that the last writer took
if counter and want == 1 then token = latest_token(counter) or next_token(counter, redis.call('TIME'), nil, 0) end

-- Neither the lease of this owner nor the expiry of the hash is ever shortened.
local left = redis.call('PTTL', lock)
lease = math.max(lease, lease_left(lock, prefix, owner, count))
if count > 0 then redis.call('HDEL', lock, '') end -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
if not mode then redis.call('HSET', lock, 'mode', 'read') end
redis.call('HSET', lock, owner, want)
local expiry = redis.pcall('PEXPIRE', lock, math.max(left, lease))
local denied = type(expiry) == 'table' and expiry or set_lease(prefix, owner, count, want, lease)
if denied then
  -- PEXPIRE or SET is denied: undo the rest, because the reader would have no lease.
  if count > 0 then
    redis.call('HSET', lock, owner, count)
  else
    redis.call('HDEL', lock, owner)
    if not mode then redis.call('DEL', lock) end
  end
  return denied
end
if reader == owner then
  -- The owner needs its reservation no longer. During the batch, the other readers that arrived before
  -- it began can still enter.
  if start > writer_passed() then write_reservation(reservation, '', 0, start, rest) else redis.pcall('DEL', reservation) end
end
return token
