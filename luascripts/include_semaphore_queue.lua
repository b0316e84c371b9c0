-- include_semaphore_queue: functions for a semaphore with waiters, or without free permits. It has no keys of its own.
-- include: reply, semaphore

-- reclaim_expired frees up to 1000 permits whose leases have expired, and returns how many.
local function reclaim_expired(free, leases, now)
  local dead = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1000)
  if #dead == 0 then return 0 end
  redis.call('ZREM', leases, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
  redis.call('INCRBY', free, #dead)
  redis.call('ZREM', leases, unpack(dead))
  return #dead
end

-- living_waiters removes dead waiters until the first 100 are alive, or it has read 1000. It returns the living ones of the
-- first 100, in order, and how many dead ones it removed; with removes false it removes none. The third result is true
-- if the queue may have more waiters than it read.
local function living_waiters(queue, timeouts, now, removes)
  local living, removed = {}, 0
  for _ = 1, 10 do
    local waiters, dead = redis.call('LRANGE', queue, 0, 99), {}
    living = {}
    if #waiters == 0 then return living, removed, false end
    local deadlines = redis.call('ZMSCORE', timeouts, unpack(waiters))
    for i, member in ipairs(waiters) do
      if deadlines[i] and tonumber(deadlines[i]) > now then
        living[#living + 1] = member
      else
        dead[#dead + 1] = member
      end
    end
    if removes and #dead > 0 then
      redis.call('ZREM', timeouts, unpack(dead))
      for _, member in ipairs(dead) do redis.call('LREM', queue, 1, member) end
      removed = removed + #dead
    end
    if #dead == 0 or not removes then return living, removed, #waiters == 100 end -- mutant: operand 2: speed
  end
  return living, removed, true
end

-- notify_waiter tells a waiter that it can acquire its permits: it publishes the waiter's number on a channel of its
-- client. If publishing is denied, the script continues: the message is only a reason to retry.
local function notify_waiter(channel, publish, waiter)
  local client, number = string.match(waiter, '^([^:]*):(.*)$')
  if client then redis.pcall(publish, channel .. ':' .. client .. ':fair', number) end
end

-- notify_waiters notifies the waiters that can acquire their permits with `value` free ones, but could not with
-- `before` free ones.
local function notify_waiters(channel, publish, living, value, before)
  local needed = 0
  for _, waiter in ipairs(living) do
    needed = needed + wanted_permits(waiter)
    if needed > value then return end
    if needed > before then notify_waiter(channel, publish, waiter) end
  end
end

-- extend_queue makes the queue expire an hour after its latest deadline, so that entries of dead waiters do not stay if
-- the semaphore is never used again. It returns an error if that is denied.
local function extend_queue(queue, timeouts, timeout)
  local ttl = redis.pcall('PTTL', queue)
  if failed(ttl) then return ttl end
  ttl = math.max(ttl, timeout + 3600000) -- another waiter may have a longer timeout
  return failed(redis.pcall('PEXPIRE', queue, ttl)) or failed(redis.pcall('PEXPIRE', timeouts, ttl))
end

-- next_expiry returns the time in ms after which a waiter retries if no message arrives before: until the first
-- lease expires; -1 if none does.
local function next_expiry(leases, now)
  local first = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
  if not first[2] then return -1 end
  local left = tonumber(first[2]) - now
  -- mutant: border: no lease is that long
  if left > 1000000000000 then return -1 end -- Redisson's permits without a lease have such a score
  return math.max(math.ceil(left), 1)
end
