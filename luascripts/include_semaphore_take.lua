-- include_semaphore_take: takes permits. It has no keys of its own.
-- include: reply, time, semaphore, semaphore_queue

-- permitted makes owner hold the permits ids, or puts it in the queue. The answer is that of semaphore_acquire.
local function permitted(free, leases, queue, alive, owner, ids, lease, stay, total, channel, change, publish)
  local value, held, answer = stock(free, leases)
  if not held then return answer end
  if not value and total == 0 then
    redis.call('ZREM', leases, '') -- no such member: a replica, whose data may be old, refuses it
    return redis.error_reply('PERMITS absent')
  end
  local there = value and value + held or total
  -- A total of zero is not final: Redisson's setPermits(0) stops a semaphore for a while.
  if total > 0 and there ~= total or #ids > there and there > 0 then
    redis.call('ZREM', leases, '') -- as above
    return redis.error_reply('PERMITS ' .. string.format('%.0f', there))
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
  if not value then -- never made, or deleted by hand
    value = total - held
    make(free, leases, value)
  end

  local before, long, living, dropped, more = value, 0, {}, 0, false
  if #missing > 0 then
    long = redis.call('LLEN', queue)
    if value < #missing then value = value + reclaim(free, leases, now) end
    -- mutant: always, border: speed
    if long > 0 then living, dropped, more = queued(queue, alive, now, true) end
  end
  local ahead, found = 0, false
  for _, waiter in ipairs(living) do
    found = waiter == owner
    if found then break end
    ahead = ahead + wants(waiter)
  end
  local mine = #missing == 0 or value >= ahead + #missing and (found or not more)

  if mine and #missing > 0 then
    -- A semaphore that Redisson made may have an expiry, which both its keys share.
    -- mutant: never 1, operand 3: speed
    local expiry = (held == 0 or redis.call('PTTL', leases) == -2) and redis.call('PTTL', free) or -1 -- all that were held may have been reclaimed
    redis.call('INCRBY', free, -#missing) -- refused here when memory is full: nothing is left in Redis
    local denied
    for _, id in ipairs(missing) do
      denied = denied or failed(redis.pcall('ZADD', leases, score, id)) -- mutant: operand 1: what is denied for one is denied for each
    end
    -- mutant: operand 1: speed
    if found and not denied then denied = failed(depart(queue, alive, owner, long - dropped)) end
    if denied then
      redis.pcall('ZREM', leases, unpack(missing))
      redis.call('INCRBY', free, #missing)
      return denied -- an error means that the owner does not have them
    end
    if expiry > 0 then redis.pcall('PEXPIRE', leases, expiry) end -- mutant: border: an expiry is in the future
    value = value - #missing
  end
  if mine and #missing < #ids then -- mutant: operand 2, border: speed
    for _, id in ipairs(ids) do redis.call('ZADD', leases, 'XX', 'GT', score, id) end
  end
  if value + (mine and #missing or 0) > before or dropped > 0 then -- permits came free, or a waiter before others is dead
    local rest = {}
    for _, waiter in ipairs(living) do
      if not mine or waiter ~= owner then rest[#rest + 1] = waiter end
    end
    spread(channel, publish, rest, value, 0)
    announce(change, publish, value)
  end
  if mine then return '0' end

  local left = pause(leases, now)
  if stay > 0 then
    local stands = redis.call('ZSCORE', alive, owner)
    -- mutant: always, operand 1, operand 2: speed
    if stands and redis.call('LLEN', queue) ~= redis.call('ZCARD', alive) then -- one of the two was deleted by hand
      stands = redis.call('LPOS', queue, owner)
    end
    if stands then
      redis.call('ZREM', alive, '') -- no such member: a first write that memory limits let through
    else
      redis.call('RPUSH', queue, owner)
    end
    local denied = failed(redis.pcall('ZADD', alive, string.format('%.0f', now + stay), owner)) or linger(queue, alive, stay)
    if denied then
      if not stands then depart(queue, alive, owner, redis.call('LLEN', queue)) end
      return denied
    end
  end
  return {left, 0}
end
