-- include_semaphore: functions of the scripts of the semaphore. It has no keys of its own.
--
-- The keys are those of Redisson's RPermitExpirableSemaphore: a string with the number of free permits, and a
-- zset with the held ones, id -> expiry in ms. The string and the size of the zset add up to the total. These
-- scripts take the expiry from the server's clock; Redisson's clients take it from their own.
--
-- Only leasehold has the queue of waiters: a list in the order of their arrival, and a zset waiter -> deadline,
-- the server's time in ms until which the waiter counts as alive. A waiter is an owner string
-- "<client uuid>:<number>:<permits>", so it shows how many permits it needs. It may acquire them as soon as
-- the free permits suffice for it and for all living waiters before it. So several can acquire at the same
-- time, and none overtakes another.
--
-- A script may empty a key. While a cluster slot is migrated, such a key is gone on this node, and what follows
-- in the script fails. Each script therefore also names a key that never exists, so that the cluster replies
-- TRYAGAIN before the script runs (include_fair).

-- read_permits returns the number of free permits, nil if there is no semaphore; and the number of held ones. If
-- a key has the wrong type, or a command is denied, it returns false, nil, and the reply for the caller.
local function read_permits(free, leases)
  local value, held = redis.pcall('GET', free), redis.pcall('ZCARD', leases)
  for _, reply in ipairs({value, held}) do
    if type(reply) == 'table' then
      return false, nil, string.find(reply.err, 'WRONGTYPE', 1, true) and -4 or reply
    end
  end
  if value and (not string.find(value, '^%-?[1-9]%d*$') and value ~= '0' or #value > 11) then return false, nil, -4 end -- INCRBY accepts no other text
  local first = held > 0 and redis.call('ZRANGE', leases, 0, 0)[1] -- mutant: always, operand 1, border: speed
  if first and #first ~= 16 then return false, nil, -4 end -- not a permit id: the zset is one of the application
  return tonumber(value), held
end

-- create sets the number of free permits of a semaphore that does not exist. If its leases have an expiry, the
-- number gets the same one. Otherwise permits that expire with the leases would never be free again.
local function create(free, leases, value)
  local text, ttl = string.format('%.0f', value), redis.call('PTTL', leases)
  if ttl > 0 then -- mutant: border: an expiry is in the future
    redis.call('SET', free, text, 'PX', ttl)
  else
    redis.call('SET', free, text)
  end
end

-- remove_waiter removes a waiter from a queue of n. It returns 1 if the waiter was in it, otherwise 0; or an error
-- if that is denied.
local function remove_waiter(queue, timeouts, waiter, n)
  local removed = redis.pcall('ZREM', timeouts, waiter)
  -- mutant: operand 1, operand 6, border: speed
  if n > 0 and (removed == 1 or removed == 0 and redis.call('ZCARD', timeouts) ~= n) then -- unequal sizes: an operator changed one of the two keys
    removed = redis.pcall('LREM', queue, 1, waiter)
  end
  return removed
end

-- wanted_permits returns how many permits a waiter needs.
local function wanted_permits(waiter)
  return tonumber(string.match(waiter, ':(%d+)$') or 1)
end

-- notify_redisson tells Redisson's clients how many permits are free. Clients of leasehold are subscribed to the
-- same channel. The zero before the number tells them that the waiters of leasehold that can go on have already
-- been notified. Redisson reads the same number.
local function notify_redisson(redisson_channel, publish, value)
  if value > 0 then redis.pcall(publish, redisson_channel, '0' .. value) end
end
