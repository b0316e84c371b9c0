-- fair_acquire: an owner takes the lock if it is its turn, or enters the queue.
-- include: time, plain, token, fair, linger
--
-- KEYS[1] lock      hash   owner -> hold count
-- KEYS[2] queue     list   waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
-- KEYS[5] counter   string the highest fencing token; only with fencing
-- ARGV[1] owner     text   "<client uuid>:<number>"
-- ARGV[2] lease     ms     how long the lock lives without a renewal
-- ARGV[3] want      count  the hold count that must result; 1 for the first hold
-- ARGV[4] stay      ms     how long its place lives without a heartbeat; 0 does not queue
-- ARGV[5] spare     count  how many tokens more the register is raised by
--
-- Returns {1, token, numbers} when the owner holds `want` times now: the fencing token, or
-- "0" for a re-entry; and the numbers of the next owners in the queue, as far as they are
-- of the same client, which may pass the lock on to them in this order.
-- Returns {n, own}: another owner has the lock or is before this one, and n ms are left of its
-- lease (-1 no expiry), or until it counts as dead. The owner is in the queue unless
-- stay is 0. If own is 1, an owner of Redisson's may tell it of its turn, at
-- the channel "<channel>:<owner>"; otherwise only ours do (include_fair).
-- Returns {n, own, wait}: as {n, own}, and the client of the other owner may keep the lock although no owner
-- uses it. It was told (include_linger), and an owner that does not wait asks again for wait ms.
-- Returns -2: a re-entry found no hold of this owner; it was lost.
-- Returns -4: the key holds something else; nothing was done.
-- Returns -5: the lock is free, a hundred dead were dropped from the head of the
-- queue, and there are more. Nothing else was done: ask again at once.
--
-- Safe to repeat: an owner in the queue keeps its place, and the call counts as a heartbeat.
local lock, queue, timeouts, never, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, want, stay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local spare = tonumber(ARGV[5])

local now, time = clock()
local fields, answer = read_plain(lock, true)
if not fields then return answer end
local taken, held, own, wait = false, false, 0, 0
for i = 1, #fields, 2 do
  if fields[i] ~= 'leasehold_line' then
    taken = fields[i]
    if not ours(fields[i]) then own = 1 end
  end
  held = held or fields[i] == owner
end
if held then
  -- PEXPIRE before HSET: after a write that cannot grow memory, Redis lets the
  -- rest of the script through even when memory is full.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
  redis.call('HSET', lock, owner, want)
  if want > 1 then return {1, '0', ''} end
  return {1, next_token(counter, time, 0, spare), following(queue, owner)}
end
if want > 1 then
  redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
  return -2
end

local left = redis.call('PTTL', lock)
local first, more, deadline = head(queue, timeouts, now)
if more and not taken then return -5 end
if not taken and (not first or first == owner) then
  local token = next_token(counter, time, 0, spare)
  redis.call('HSET', lock, owner, 1) -- refused here when memory is full: nothing is left in Redis
  local denied = redis.pcall('PEXPIRE', lock, lease)
  if type(denied) ~= 'table' then denied = first and dequeue(queue, timeouts, {owner}) end
  if denied then
    redis.call('DEL', lock) -- an error means that the owner does not have it
    return denied
  end
  return {1, token, first and following(queue, owner) or ''} -- mutant: operand 2: speed
end

if stay > 0 then
  local size, score = redis.call('LLEN', queue), redis.call('ZSCORE', timeouts, owner)
  local there, count = score, 0
  -- mutant: always: speed
  if size ~= redis.call('ZCARD', timeouts) then there = redis.call('LPOS', queue, owner) end -- one of the two was deleted by hand
  if not there then
    count = arrivals(queue, timeouts, now, stay, size)
  elseif not ours(first or owner) or not (score and alone(score - now, stay)) then -- mutant: always: speed
    local before, foreign = near(queue)
    count = before[owner] or score and math.max(foreign, expected(score - now, stay)) or foreign
  end
  if count > 0 then own = 1 end
  local deadline, denied = now + stay + count * 300000, nil
  if there then
    redis.call('ZREM', timeouts, '') -- no such member: a first write that memory limits let through
    denied = redis.pcall('ZADD', timeouts, deadline, owner)
    if type(denied) ~= 'table' then denied = nil end
  else
    denied = enter(queue, timeouts, {owner}, {deadline})
  end
  if denied then return denied end
  denied = outlive(queue, timeouts, now, stay, count > 0, size == 0) -- mutant: never 2: speed
  if denied then
    if not there then dequeue(queue, timeouts, {owner}) end
    return denied
  end
end
if taken then wait = notify_keeper(lock, taken, owner, stay > 0) end
if wait > 0 then return {left, own, wait} end
if taken then return {left, own} end
return {deadline - now, own}
