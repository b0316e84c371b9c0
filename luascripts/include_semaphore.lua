-- include_semaphore: functions of the scripts of a semaphore. It has no keys of its own.
--
-- Redisson's RPermitExpirableSemaphore keeps the number of free permits in a string, and each permit that is
-- held in a zset: id -> expiry, in ms. So the string and the size of the zset add up to the total. Ours put the
-- server's time into the zset, Redisson's clients put their own.
--
-- The queue of waiters is ours alone: a list, in the order of their arrival, and a zset waiter -> the server's
-- time in ms until which it counts as alive. A waiter is an owner string "<client uuid>:<number>:<permits>", so it
-- says what it waits for. A waiter may take its permits as soon as those of all living waiters before it are
-- free as well. So several can go at once, and nobody overtakes.
--
-- While a slot moves between nodes of a cluster, a key that a script empties is gone, and what comes after it in
-- the script fails. So each script names a key that never exists.

-- stock returns how many permits are free, or false if the semaphore is not there, and how many are held. If a key
-- holds something else, or a command is denied, it returns false and nil, and an answer for the caller.
local function stock(free, leases)
  local value, held = redis.pcall('GET', free), redis.pcall('ZCARD', leases)
  for _, reply in ipairs({value or '0', held}) do
    if type(reply) == 'table' then
      return false, nil, string.find(reply.err, 'WRONGTYPE', 1, true) and -4 or reply
    end
  end
  if value and (not string.find(value, '^%-?%d+$') or #value > 11) then return false, nil, -4 end
  return value and tonumber(value), held
end

-- reclaim gives back the permits whose leases have run out, a thousand at most, and returns how many.
local function reclaim(free, leases, now)
  local dead = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1000)
  if #dead == 0 then return 0 end
  redis.call('ZREM', leases, '') -- no such member: a first write that memory limits let through
  redis.call('INCRBY', free, #dead)
  redis.call('ZREM', leases, unpack(dead))
  return #dead
end

-- wants returns how many permits a waiter waits for.
local function wants(waiter)
  return tonumber(string.match(waiter, ':(%d+)$')) or 1
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
    if #living > 0 or not drops then return living, dropped, #members == 100 end
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
-- `before` were free. It leaves out one of them.
local function spread(channel, publish, living, value, before, but)
  local sum = 0
  for _, waiter in ipairs(living) do
    sum = sum + wants(waiter)
    if sum > value then return end
    if sum > before and waiter ~= but then invite(channel, publish, waiter) end
  end
end

-- announce tells Redisson's clients how many permits are free. A zero before the number means the same to them. It says to
-- clients of ours, which hear it too, that those of them whose turn it is have been told.
local function announce(change, publish, value)
  if value > 0 then redis.pcall(publish, change, '0' .. value) end
end

-- failed returns the reply of a pcall if it is an error.
local function failed(reply)
  if type(reply) == 'table' and reply.err then return reply end
end

-- depart takes a waiter out of the queue. It returns an error if that is denied.
local function depart(queue, alive, waiter)
  local was = redis.pcall('ZREM', alive, waiter)
  if was == 1 or was == 0 and redis.call('LLEN', queue) ~= redis.call('ZCARD', alive) then
    was = redis.pcall('LREM', queue, 1, waiter)
  end
  return failed(was)
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
  if left > 1000000000000 then return -1 end -- Redisson's score of a permit without a lease
  return math.max(math.ceil(left), 1)
end
