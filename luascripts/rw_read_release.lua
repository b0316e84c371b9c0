-- rw_read_release: releases read holds, or ends the wait of a reader.
-- include: rw
--
-- KEYS[1] lock         hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] reservation  string  "<owner> <since ms> <start ms>" of a waiting reader, and of the batch of readers
-- KEYS[3] never        string  a key that never exists (include_rw)
-- ARGV[1] owner    text   "<client uuid>:<number>"
-- ARGV[2] leave    count  the read holds that must remain; 0 releases all, and deletes the owner's reservation
-- ARGV[3] prefix   text   what the keys of read leases begin with
-- ARGV[4] channel  text   the channel of the waiters
-- ARGV[5] publish  text   the command that notifies them: PUBLISH or SPUBLISH
--
-- Returns 1 if the owner now has `leave` read holds.
-- Returns -2 if the owner has no read hold: it was lost, the owner only waited, or an earlier copy of
-- this call released it.
-- Returns -3 if 50 dead readers were removed, and there are more readers to check: call the script again.
-- Returns -4 if the key is not a read/write lock; nothing was changed.
--
-- The last living reader deletes the hash, and with it the fields of dead readers. If there are many
-- fields, each release removes some dead ones. With more than 50 other readers, the hash keeps its
-- expiry.
--
-- Safe to repeat: `leave` is the resulting hold count, and only the owner's field changes.
local lock, reservation, never = KEYS[1], KEYS[2], KEYS[3]
local owner, leave, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local channel, publish = ARGV[4], ARGV[5]

local function notify() redis.pcall(publish, channel, '0') end -- if publishing is denied, the release still counts

local reader, _, start = read_reservation(reservation)
if leave == 0 and reader == owner then
  redis.pcall('DEL', reservation)
  notify() -- writers may have waited for this reader
end
local mode, answer = read_rw(lock)
if mode == nil then return answer end
local count = tonumber(redis.call('HGET', lock, owner))
redis.call('HDEL', lock, '') -- deletes nothing; a replica rejects it, and then full memory does not stop the rest
if not count then return -2 end

local own_lease = lease_left(lock, prefix, owner, count)
if leave > 0 then
  if own_lease == 0 then return -2 end
  redis.call('HSET', lock, owner, leave)
  local denied = set_lease(prefix, owner, count, leave, own_lease) -- a partial release does not change the lease
  if denied then
    redis.call('HSET', lock, owner, count)
    return denied
  end
  return 1
end
if mode == 'write' then -- the owner also has the write hold, whose lease keeps the hash
  redis.call('HDEL', lock, owner)
else
  -- The hash expires with the longest lease. If another reader has that lease, the expiry is right already.
  local expiry = redis.call('PTTL', lock) - 10
  local longest, complete, dead = survey_readers(lock, prefix, owner, math.max(expiry, 1))
  if longest == 0 and not complete then
    remove_dead(lock, dead)
    return -3
  end
  if longest == 0 then
    redis.call('DEL', lock)
    -- mutant: operand 2, border: speed
    if reader == '' and start > 0 then redis.pcall('DEL', reservation) end -- the batch has ended
    notify()
  else
    redis.call('HDEL', lock, owner)
    if complete then -- survey_readers stops at a lease that is as long as the expiry
      redis.pcall('PEXPIRE', lock, longest)
      if longest < 1000 then notify() end -- the reader with this lease may be dead: waiters must retry soon
    end
    remove_some_dead(lock, prefix)
  end
end
delete_leases(prefix, owner, 1, count)
if own_lease == 0 then return -2 end
return 1
