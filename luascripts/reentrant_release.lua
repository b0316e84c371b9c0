-- reentrant_release: releases holds of a plain lock. The last release grants it to the next owner in the queue.
-- include: channels, handoff, may_linger
-- later: release
--
-- KEYS[1] lock      hash    owner -> hold count, and the queue (include_queue)
-- KEYS[2] counter   string  the highest fencing token; only with fencing
-- ARGV[1]  owner       text   "<client uuid>:<number>"
-- ARGV[2]  publish     text   the command that notifies waiters: PUBLISH or SPUBLISH
-- ARGV[3]  counts      count  as in reentrant_acquire
-- ARGV[4]  leave       count  the hold count that must remain; 0, or missing, releases the lock
-- ARGV[5]  next_owner  text   an owner that waits in the same process; this and the next arguments are missing if there is none
-- ARGV[6]  offer       ms     the lease with which the lock is granted to next_owner
-- ARGV[7]  retry       ms     the time after which next_owner retries if it has to wait
-- ARGV[8]  timeout     ms     how long next_owner then counts as alive without a retry, if the server cannot count subscribers
-- ARGV[9]  last_token  text   the latest token that the owner handed out
-- ARGV[10] spare       count  how many further tokens next_owner may hand out
--
-- Returns 1 if the owner now holds the lock `leave` times. If that is 0, the lock is free or was
-- granted to another process.
-- Returns a string if next_owner now holds the lock: its fencing token.
-- Returns 2 if the lock is free, and the processes in the queue must wait a little before they retry.
-- Returns 3 if the lock is free, and clients that do not use the queue may be subscribed. Only an
-- owner whose client keeps locks (include_linger) gets this reply.
-- Returns -2 if the owner does not hold the lock: it was lost, or an earlier copy of this call
-- released it. If the owner is in the queue, it is removed.
-- Returns -4 if the key is not a plain lock; nothing was changed. A hash with no field except the
-- owner's counts as a lock of the owner, whatever value the field has.
--
-- The first process in the queue that is alive becomes the holder, with its offer as the lease. A
-- message tells that process to retry, and the reply to the retry tells it that it holds the lock.
-- A message that is lost or forged therefore changes nothing. next_owner comes after the others.
--
-- Some callers never join the queue: TryLock, and Redisson's clients. They can only acquire a lock
-- that is free. A lock that is handed off is therefore freed now and then, with a message to all
-- waiters (hand_off in include_release has the numbers).
--
-- Safe to repeat: it changes only the owner's field, and only if the owner holds the lock.
local lock, counter = KEYS[1], KEYS[2]
local owner, publish, counts, leave = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4] or '0'
local next_owner, offer, retry, timeout = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local last_token, spare = ARGV[9], ARGV[10]

-- Fast path for the usual cases: the queue is empty, so the hash has one field; or the first owner
-- in the queue gets the lock. Defining all functions takes longer than such a call.
if leave == '0' and not next_owner then
  if redis.pcall('HLEN', lock) == 1 and redis.pcall('HDEL', lock, owner) == 1 then
    local subscribers = redis.pcall(publish, waiters_channel(lock), '0') -- if publishing is denied, the release still counts
    return may_linger(owner) and not (counts and subscribers == 0) and 3 or 1
  end
  local answer = counts and quick_hand_off(lock, owner, redis.pcall('HMGET', lock, owner, 'leasehold_line'), publish)
  if answer then return answer end
end
local named = next_owner and {owner = next_owner, offer = offer, retry = tonumber(retry), timeout = tonumber(timeout)}
return later().release_lock(lock, counter, nil, owner, leave, publish, counts, last_token, spare, named)
