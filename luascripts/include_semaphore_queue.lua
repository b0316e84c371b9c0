-- include_semaphore_queue: functions for a semaphore whose permits are all taken, or that has waiters. It has no keys of its own.
-- include: reply, semaphore

-- reclaim gives back the permits whose leases have run out, a thousand at most, and returns how many.
local function reclaim(free, leases, now)
  local dead = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1000)
  if #dead == 0 then return 0 end
  redis.call('ZREM', leases, '') -- no such member: a first write that memory limits let through
  redis.call('INCRBY', free, #dead)
  redis.call('ZREM', leases, unpack(dead))
  return #dead
end

-- queued returns the living among the first hundred waiters, in order, and how many dead it dropped from
-- there. It drops none if `drops` is false. Where all of the first hundred are dead, it looks at the next, ten
-- times at most; the third result says that there are more than it looked at.
local function queued(queue, alive, now, drops)
  local living, dropped = {}, 0
  for _ = 1, 10 do
    local members, dead = redis.call('LRANGE', queue, 0, 99), {}
    if #members == 0 then return living, dropped, false end
    local deadlines = redis.call('ZMSCORE', alive, unpack(members))
    for i, member in ipairs(members) do
      if deadlines[i] and tonumber(deadlines[i]) > now then
        living[#living + 1] = member
      else
        dead[#dead + 1] = member
      end
    end
    if drops and #dead > 0 then
      redis.call('ZREM', alive, unpack(dead))
      for _, member in ipairs(dead) do redis.call('LREM', queue, 1, member) end
      dropped = dropped + #dead
    end
    if #living > 0 or not drops then return living, dropped, #members == 100 end -- mutant: operand 2: speed
  end
  return living, dropped, true
end

-- invite tells a waiter that it may take its permits: by its number, at a channel of its client. Its refusal must
-- not undo anything: the message is only a reason to ask.
local function invite(channel, publish, waiter)
  local client, number = string.match(waiter, '^([^:]*):(.*)$')
  if client then redis.pcall(publish, channel .. ':' .. client .. ':fair', number) end
end

-- spread tells those of the living who can take their permits now that `value` are free, and could not when only
-- `before` were free.
local function spread(channel, publish, living, value, before)
  local sum = 0
  for _, waiter in ipairs(living) do
    sum = sum + wants(waiter)
    if sum > value then return end
    if sum > before then invite(channel, publish, waiter) end
  end
end

-- linger makes the queue expire an hour after its latest sign of life, so that the traces of the dead do not stay
-- when no waiter ever comes again. It returns an error if that is denied.
local function linger(queue, alive, stay)
  local long = redis.pcall('PTTL', queue)
  if failed(long) then return long end
  long = math.max(long, stay + 3600000) -- another waiter may have more patience
  return failed(redis.pcall('PEXPIRE', queue, long)) or failed(redis.pcall('PEXPIRE', alive, long))
end

-- pause returns after how many ms a waiter looks again, if it hears nothing before: when the first lease
-- runs out; -1 if none does.
local function pause(leases, now)
  local first = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
  if not first[2] then return -1 end
  local left = tonumber(first[2]) - now
  -- mutant: border: no lease is that long
  if left > 1000000000000 then return -1 end -- Redisson's score of a permit without a lease
  return math.max(math.ceil(left), 1)
end
