-- fair_release: releases holds of a fair lock, or removes an owner from its queue.
-- include: time, token, plain, fair
--
-- KEYS[1] lock      hash   owner -> hold count, and the queue of a plain lock of that name (include_queue)
-- KEYS[2] queue     list   waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string a key that never exists (include_fair)
-- KEYS[5] counter   string the highest fencing token; only with fencing
-- ARGV[1] owner       text   "<client uuid>:<number>"
-- ARGV[2] leave       count  the hold count that must remain; 0 releases the lock, and the owner's queue position
-- ARGV[3] channel     text   what the channels of owners begin with (include_fair)
-- ARGV[4] publish     text   the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[5] last_token  text   the latest token that the owner handed out
-- ARGV[6] spare       count  how many further tokens next_owner may hand out
-- ARGV[7] next_owner  text   an owner of the same client, which gets the lock if it is the first in the queue; "" for none
-- ARGV[8] lease       ms     the lease with which the lock is granted to next_owner
-- ARGV[i] served      text   owners to which the client has handed the lock off since; they leave the queue
--
-- Returns {1, more} if the owner now holds the lock `leave` times. If 100 dead owners were removed from
-- the front of the queue and there are more, more is 1: call the script again.
-- Returns {1, 0, token, numbers} if next_owner now holds the lock: its fencing token, and the next owners
-- in the queue, as in the reply of fair_acquire.
-- Returns {-2, more} if the owner does not hold the lock: it was lost, the owner only waited, or an earlier
-- copy of this call released it.
-- Returns {-4, 0} if the key is not a lock; only the queue position was removed.
--
-- If the lock is free, the first living owner in the queue is next. If that is next_owner, it gets the lock
-- at once, because its process reads the reply. Any other owner is notified, and acquires the lock with its
-- own request. So no message decides who holds the lock.
--
-- Safe to repeat: `leave` is the resulting hold count, and no other owner's hold changes.
local lock, queue, timeouts, never, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, leave = ARGV[1], tonumber(ARGV[2])
local channel, publish = ARGV[3], ARGV[4]
local last_token, spare, next_owner, lease = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local fields, answer = read_plain(lock)
if not fields and answer ~= -4 then return answer end
local count, free = false, true
for i = 1, #(fields or {}), 2 do
  if fields[i] == owner then
    count = fields[i + 1]
  elseif fields[i] ~= 'leasehold_line' then
    free = false
  end
end

if leave > 0 then
  if not fields then return {-4, 0} end
  redis.call('HDEL', lock, '') -- deletes nothing; a replica rejects it, and then full memory does not stop the rest
  if not count then return {-2, 0} end
  -- mutant: always: speed
  if tonumber(count) ~= leave then redis.call('HSET', lock, owner, leave) end
  return {1, 0}
end

local leaving = {owner}
for i = 9, #ARGV do
  local served = ARGV[i]
  leaving[#leaving + 1] = served
end
local denied = dequeue(queue, timeouts, leaving)
if denied then return denied end
if not fields then return {-4, 0} end

local first, more, time
if free then
  local now
  now, time = clock()
  first, more = first_alive(queue, timeouts, now)
end
if count and first == next_owner then
  local ok, token = pcall(next_token, counter, time, last_token, spare) -- an invalid token counter must not fail the release
  if ok then
    redis.call('HSET', lock, next_owner, 1)
    -- If PEXPIRE is denied, the lock would never expire, so next_owner does not get it.
    if type(redis.pcall('PEXPIRE', lock, lease)) ~= 'table' and not dequeue(queue, timeouts, {next_owner}) then
      redis.call('HDEL', lock, owner, 'leasehold_line')
      return {1, 0, token, next_numbers(queue, next_owner)}
    end
    redis.call('HDEL', lock, next_owner)
  end
end
redis.call('HDEL', lock, owner, free and 'leasehold_line' or owner) -- in one command, because the key is deleted with its last field
if first then notify_owner(channel, publish, first) end
return {count and 1 or -2, more and 1 or 0} -- mutant: operand 7: a reply has true as 1
