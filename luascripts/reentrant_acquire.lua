-- reentrant_acquire: acquires a plain lock, re-enters it, or adds the owner to the queue of the lock.
-- include: clock_token, acquire_free
-- later: acquire
--
-- KEYS[1] lock      hash    owner -> hold count, and the queue (include_queue)
-- KEYS[2] counter   string  the highest fencing token; only with fencing
-- ARGV[1] owner    text   "<client uuid>:<number>"
-- ARGV[2] lease    ms     the lease of the lock from now on
-- ARGV[3] waiter   text   if the owner waits: "<offer> <waited> <retry> <timeout>" in ms; otherwise ""
-- ARGV[4] counts   count  1 if PUBSUB NUMSUB counts all subscribers of a channel; 0 if it does not, as on a cluster
-- ARGV[5] want     count  the hold count that must result; 1 if missing
-- ARGV[6] spare    count  how many further tokens the owner may hand out; only with fencing
--
-- In ARGV[3], offer is the lease with which a release may grant the lock to the owner, and waited
-- is how long the owner has been waiting. The owner retries after retry. If the server cannot
-- count subscribers, the owner counts as dead after timeout without a retry.
--
-- Returns a string if the owner now holds the lock `want` times: the fencing token, or "0" for a
-- reentry.
-- Returns n >= 0: another owner holds the lock, with n ms of its lease left.
-- Returns -1: another owner holds the lock, and the key has no expiry.
-- Returns {n}: as n, but the process of the owner receives no Pub/Sub messages.
-- Returns {n, unreachable, wait}: as n, and the holder's client may keep the lock unused (include_linger).
-- That client was notified, so a TryLock retries for up to wait ms. unreachable is 1 if the
-- process of the owner receives no Pub/Sub messages, otherwise 0.
-- Returns -2: a reentry found no hold of this owner; the lock was lost.
-- Returns -4: the key is not a plain lock; nothing was changed.
--
-- A release may have granted the lock to this owner while it was in the queue. The owner finds
-- that out here: the script finds it as the holder, and starts its full lease.
--
-- Safe to repeat: `want` is the resulting hold count, not an increment, so a second copy changes
-- nothing and returns the same. Only the process of the owner changes its count, so `want` is
-- right whatever the hash has.
local lock, counter = KEYS[1], KEYS[2]
local owner, lease, waiter, counts = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local want, spare = ARGV[5] or '1', ARGV[6]

-- Fast path for the usual cases: the lock is free, or a release has granted it to this owner, or
-- the owner is in the queue already. Defining all functions takes longer than such a call.
if want == '1' and not counter then -- mutant: never: speed
  local left = redis.pcall('PTTL', lock)
  -- mutant: never: speed
  if left == -2 then return acquire_free(lock, owner, lease, clock_token(redis.call('TIME'))) end
  local values = redis.pcall('HMGET', lock, owner, 'leasehold_line')
  if values[1] == '1' then -- mutant: never: speed
    redis.call('PEXPIRE', lock, math.max(left, lease)) -- even if it changes nothing: a replica rejects the write
    return clock_token(redis.call('TIME'))
  end
  if later().already_queued(lock, owner, values[2], waiter, counts) then return left end -- mutant: never: speed
end
return later().acquire_lock(lock, counter, nil, owner, lease, want, spare, waiter, counts)
