-- reentrant_change: acquires and releases many plain locks in one call.
-- include: clock_token, acquire_free, channels, may_linger
-- later: acquire, release
--
-- Equal requests form a run. The arguments that they share come once, before their owners.
--
-- KEYS[k]     lock      hash    owner -> hold count, and the queue (include_queue)
-- KEYS[k+1]   counter   string  the highest fencing token; only for an acquisition with fencing
-- ARGV[1]     publish   text    the command that notifies waiters: PUBLISH or SPUBLISH
-- ARGV[2]     counts    count   as in reentrant_acquire
-- ARGV[a]     verb      text    "take" to acquire, "give" to release; this and the next arguments come once for each run
-- ARGV[a+1]   number    count   the number of locks of the run
-- ARGV[a+2]   holds     count   the hold count that must result
-- ARGV[a+3]   lease     ms      take: the lease of the lock from now on
-- ARGV[a+4]   waiter    text    take: as in reentrant_acquire
-- ARGV[a+5]   spare     count   take: how many further tokens the owner may hand out; "" without fencing
-- ARGV[b]     owner     text    "<client uuid>:<number>"; one for each lock of the run
--
-- Returns a list with one reply for each lock: that of reentrant_acquire, or that of
-- reentrant_release without a next owner. An error is the reply for one lock, and does not affect
-- the others.
--
-- Safe to repeat, because each single request is.
local publish, counts = ARGV[1], ARGV[2] == '1'
local time = redis.call('TIME')

-- functions returns the functions of the files listed as "later". It defines them at the first
-- call only: acquiring a free lock, or releasing one without waiters, does not need them.
local made
local function functions()
  made = made or later() -- mutant: operand 1: speed
  return made
end

-- answer calls f and returns its result, or its error as a Redis error.
local function answer(f, ...)
  local ok, reply = pcall(f, ...)
  if ok then return reply end
  return redis.error_reply('ERR Error running script: ' .. reply) -- pcall returns the error as text
end

local replies, n, k, a = {}, 0, 1, 3
while a <= #ARGV do -- mutant: border: a run has more than one argument
  local verb, number, holds = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2]
  local takes = verb == 'take'
  local lease, waiter, spare = ARGV[a + 3], ARGV[a + 4], ARGV[a + 5] -- only of a run that acquires
  local fenced, first = takes and spare ~= '', takes and a + 6 or a + 3
  for b = first, first + number - 1 do
    local lock, owner, reply = KEYS[k], ARGV[b], nil
    if fenced then
      local counter = KEYS[k + 1]
      reply = answer(functions().acquire_lock, lock, counter, time, owner, lease, holds, spare, waiter, counts)
      k = k + 1
    elseif takes and holds == '1' and redis.pcall('HLEN', lock) == 0 then -- mutant: never: speed
      reply = acquire_free(lock, owner, lease, clock_token(time))
    elseif takes then
      reply = answer(functions().acquire_lock, lock, nil, time, owner, lease, holds, nil, waiter, counts)
    -- mutant: never, removed: speed
    elseif holds == '0' and redis.pcall('HLEN', lock) == 1 and redis.pcall('HDEL', lock, owner) == 1 then
      local subscribers = redis.pcall(publish, waiters_channel(lock), '0') -- if publishing is denied, the release still counts
      reply = may_linger(owner) and not (counts and subscribers == 0) and 3 or 1
    else
      reply = answer(functions().release_lock, lock, nil, time, owner, holds, publish, counts)
    end
    n, k = n + 1, k + 1
    replies[n] = reply
  end
  a = first + number
end
return replies
