-- include_semaphore_acquire: acquires permits. It has no keys of its own.
-- include: reply, time, semaphore, semaphore_queue

-- acquire_permits makes owner hold the permits ids, or adds it to the queue. Its result is the reply of
-- semaphore_acquire.
local function acquire_permits(free, leases, queue, timeouts, owner, ids, lease, timeout, total, channel, redisson_channel, publish)
  local value, held, answer = read_permits(free, leases)
  if not held then return answer end
  if not value and total == 0 then
    redis.call('ZREM', leases, '') -- deletes nothing; a replica, whose data may be old, rejects it
    return redis.error_reply('PERMITS absent')
  end
  local actual_total = value and value + held or total
  -- With a total of zero, wait instead: Redisson's setPermits(0) pauses a semaphore.
  if total > 0 and actual_total ~= total or #ids > actual_total and actual_total > 0 then
    redis.call('ZREM', leases, '') -- as above
    return redis.error_reply('PERMITS ' .. string.format('%.0f', actual_total))
  end
  local now = clock()
  local score = string.format('%.0f', now + lease)
  local missing = ids
  if held > 0 then -- mutant: always, border: speed
    missing = {}
    for i, at in ipairs(redis.call('ZMSCORE', leases, unpack(ids))) do
      if not at then missing[#missing + 1] = ids[i] end
    end
  end
  if not value then -- new, or an operator deleted the number
    value = total - held
    create(free, leases, value)
  end

  local before, length, waiters, removed, more = value, 0, {}, 0, false
  if #missing > 0 then
    length = redis.call('LLEN', queue)
    if value < #missing then value = value + reclaim_expired(free, leases, now) end
    -- mutant: always, border: speed
    if length > 0 then waiters, removed, more = living_waiters(queue, timeouts, now, true) end
  end
  local ahead, is_queued = 0, false
  for _, waiter in ipairs(waiters) do
    is_queued = waiter == owner
    if is_queued then break end
    ahead = ahead + wanted_permits(waiter)
  end
  local acquires = #missing == 0 or value >= ahead + #missing and (is_queued or not more)

  if acquires and #missing > 0 then
    -- If Redisson created the semaphore with an expiry, both keys have to share it.
    -- mutant: never 1, always 1, always 2, operand 2, operand 3: speed; if leases exists, the keys share their expiry already
    local expiry = (held == 0 or redis.call('PTTL', leases) == -2) and redis.call('PTTL', free) or -1 -- reclaim_expired may have emptied leases
    redis.call('INCRBY', free, -#missing) -- the first write: if memory is full, it fails, and leaves nothing in Redis
    local denied
    for _, id in ipairs(missing) do
      denied = denied or failed(redis.pcall('ZADD', leases, score, id)) -- mutant: operand 1: what is denied for one is denied for each
    end
    -- mutant: operand 1: speed
    if is_queued and not denied then denied = failed(remove_waiter(queue, timeouts, owner, length - removed)) end
    if denied then
      redis.pcall('ZREM', leases, unpack(missing))
      redis.call('INCRBY', free, #missing)
      return denied -- an error must mean that the owner does not hold them
    end
    if expiry > 0 then redis.pcall('PEXPIRE', leases, expiry) end -- mutant: border: an expiry is in the future
    value = value - #missing
  end
  if acquires and #missing < #ids then -- mutant: operand 2, border: speed
    for _, id in ipairs(ids) do redis.call('ZADD', leases, 'XX', 'GT', score, id) end
  end
  if value + (acquires and #missing or 0) > before or removed > 0 then -- permits became free, or a dead waiter was removed: others may be able to acquire
    local others = {}
    for _, waiter in ipairs(waiters) do
      if not acquires or waiter ~= owner then others[#others + 1] = waiter end
    end
    notify_waiters(channel, publish, others, value, 0)
    notify_redisson(redisson_channel, publish, value)
  end
  -- mutant: always, operand 1, operand 2: speed
  if acquires and more then -- another waiter is among the first 100 now, which no release has notified
    local entering, needed = redis.call('LRANGE', queue, 99, 99)[1], 0
    for _, waiter in ipairs(waiters) do
      if waiter ~= owner then needed = needed + wanted_permits(waiter) end
    end
    if entering and value >= needed + wanted_permits(entering) then notify_waiter(channel, publish, entering) end
  end
  if acquires then return '0' end

  local left = next_expiry(leases, now)
  if timeout > 0 then
    local queued = redis.call('ZSCORE', timeouts, owner)
    -- mutant: always, operand 1, operand 2: speed
    if queued and redis.call('LLEN', queue) ~= redis.call('ZCARD', timeouts) then -- an operator deleted one of the two keys
      queued = redis.call('LPOS', queue, owner)
    end
    if queued then
      redis.call('ZREM', timeouts, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
    else
      redis.call('RPUSH', queue, owner)
    end
    local denied = failed(redis.pcall('ZADD', timeouts, string.format('%.0f', now + timeout), owner)) or extend_queue(queue, timeouts, timeout)
    if denied then
      if not queued then remove_waiter(queue, timeouts, owner, redis.call('LLEN', queue)) end
      return denied
    end
  end
  return {left, 0}
end
