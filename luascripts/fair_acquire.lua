-- fair_acquire: acquires a fair lock if it is the owner's turn, or adds the owner to the queue.
-- include: time, plain, token, fair, linger
--
-- KEYS[1] lock      hash   owner -> hold count
-- KEYS[2] queue     list   waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string a key that never exists (include_fair)
-- KEYS[5] counter   string the highest fencing token; only with fencing
-- ARGV[1] owner     text   "<client uuid>:<number>"
-- ARGV[2] lease     ms     the lease of the lock from now on
-- ARGV[3] want      count  the hold count that must result; 1 for the first hold
-- ARGV[4] timeout   ms     how long the owner counts as alive without a heartbeat; 0 does not join the queue
-- ARGV[5] spare     count  how many further tokens the owner may hand out
--
-- Returns {1, token, numbers} if the owner now holds the lock `want` times. token is the fencing token, or
-- "0" for a reentry. numbers are those of the next owners in the queue that are of the same client, which
-- may hand the lock off to them in this order.
-- Returns {n, own}: another owner holds the lock or is before this one. n ms are left of the holder's
-- lease (-1 no expiry), or until the owner before counts as dead. This owner is in the queue unless
-- timeout is 0. If own is 1, a client of Redisson may notify it, on the channel "<channel>:<owner>".
-- Otherwise only clients of leasehold do (include_fair).
-- Returns {n, own, wait}: as {n, own}, and the holder's client may keep the lock unused (include_linger).
-- That client was notified, so a TryLock retries for up to wait ms.
-- Returns -2: a reentry found no hold of this owner; the lock was lost.
-- Returns -4: the key is not a fair lock; nothing was changed.
-- Returns -5: the lock is free, 100 dead owners were removed from the front of the queue, and there are
-- more: call the script again.
--
-- Safe to repeat: `want` is the resulting hold count, and an owner in the queue keeps its position. The
-- call also counts as a heartbeat.
local lock, queue, timeouts, never, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, want, timeout = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local spare = tonumber(ARGV[5])

local now, time = clock()
local fields, answer = read_plain(lock, true)
if not fields then return answer end
local holder, is_holder, own, wait = false, false, 0, 0
for i = 1, #fields, 2 do
  if fields[i] ~= 'leasehold_line' then
    holder = fields[i]
    if not is_ours(fields[i]) then own = 1 end
  end
  is_holder = is_holder or fields[i] == owner
end
if is_holder then
  -- PEXPIRE comes before HSET: it needs no memory, and after such a write Redis executes the rest of a
  -- script even if memory is full. So a reentry works then, too.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
  redis.call('HSET', lock, owner, want)
  if want > 1 then return {1, '0', ''} end
  return {1, next_token(counter, time, 0, spare), next_numbers(queue, owner)}
end
if want > 1 then
  redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
  return -2
end

local left = redis.call('PTTL', lock)
local first, more, deadline = first_alive(queue, timeouts, now, timeout)
if more and not holder then return -5 end
if not holder and (not first or first == owner) then
  local token = next_token(counter, time, 0, spare)
  redis.call('HSET', lock, owner, 1) -- the first write: if memory is full, it fails, and leaves nothing in Redis
  local denied = redis.pcall('PEXPIRE', lock, lease)
  if type(denied) ~= 'table' then denied = first and dequeue(queue, timeouts, {owner}) end
  if denied then
    redis.call('DEL', lock) -- an error must mean that the owner does not hold the lock
    return denied
  end
  return {1, token, first and next_numbers(queue, owner) or ''} -- mutant: operand 2: speed
end

if timeout > 0 then
  local size, score = redis.call('LLEN', queue), redis.call('ZSCORE', timeouts, owner)
  local queued, foreign = score, 0
  -- mutant: always: speed
  if size ~= redis.call('ZCARD', timeouts) then queued = redis.call('LPOS', queue, owner) end -- an operator deleted one of the two keys
  if not queued then
    foreign = foreign_before_new(queue, timeouts, now, timeout, size)
  elseif not is_ours(first or owner) or not (score and none_foreign_before(score - now, timeout)) then -- mutant: always: speed
    local before, among = first_hundred(queue)
    foreign = before[owner] or score and math.max(among, foreign_by_deadline(score - now, timeout)) or among
  end
  if foreign > 0 then own = 1 end
  local deadline, denied = deadline_behind(foreign, now, timeout), nil
  if queued then
    redis.call('ZREM', timeouts, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
    denied = redis.pcall('ZADD', timeouts, deadline, owner)
    if type(denied) ~= 'table' then denied = nil end
  else
    denied = append(queue, timeouts, {owner}, {deadline})
  end
  if denied then return denied end
  denied = extend_expiry(queue, timeouts, now, timeout, foreign > 0, size == 0) -- mutant: never 2: speed
  if denied then
    if not queued then dequeue(queue, timeouts, {owner}) end
    return denied
  end
end
if holder then wait = notify_keeper(lock, holder, owner, timeout > 0) end
if wait > 0 then return {left, own, wait} end
if holder then return {left, own} end
return {deadline - now, own}
