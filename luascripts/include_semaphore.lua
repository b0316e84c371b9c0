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

-- stock returns how many permits are free, or nil if the semaphore is not there, and how many are held. If a key
-- holds something else, or a command is denied, it returns false and nil, and an answer for the caller.
local function stock(free, leases)
  local value, held = redis.pcall('GET', free), redis.pcall('ZCARD', leases)
  for _, reply in ipairs({value, held}) do
    if type(reply) == 'table' then
      return false, nil, string.find(reply.err, 'WRONGTYPE', 1, true) and -4 or reply
    end
  end
  if value and (not string.find(value, '^%-?[1-9]%d*$') and value ~= '0' or #value > 11) then return false, nil, -4 end -- as INCRBY reads it
  local first = held > 0 and redis.call('ZRANGE', leases, 0, 0)[1] -- mutant: always, operand 1, border: speed
  if first and #first ~= 16 then return false, nil, -4 end -- no permit: a zset of the application
  return tonumber(value), held
end

-- make sets the number of free permits of a semaphore that is not there. If its leases have an expiry, the number has it, too: permits that
-- are gone with them would never come back.
local function make(free, leases, value)
  local text, life = string.format('%.0f', value), redis.call('PTTL', leases)
  if life > 0 then -- mutant: border: an expiry is in the future
    redis.call('SET', free, text, 'PX', life)
  else
    redis.call('SET', free, text)
  end
end

-- depart takes a waiter out of a queue of n. It returns 1 if the waiter was there, or 0; or an error if that is denied.
local function depart(queue, alive, waiter, n)
  local was = redis.pcall('ZREM', alive, waiter)
  -- mutant: operand 1, operand 6, border: speed
  if n > 0 and (was == 1 or was == 0 and redis.call('ZCARD', alive) ~= n) then -- unequal: one of the two was changed by hand
    was = redis.pcall('LREM', queue, 1, waiter)
  end
  return was
end

-- wants returns how many permits a waiter waits for.
local function wants(waiter)
  return tonumber(string.match(waiter, ':(%d+)$') or 1)
end

-- announce tells Redisson's clients how many permits are free. A zero before the number means the same to them. It says to
-- clients of ours, which hear it too, that those of them whose turn it is have been told.
local function announce(change, publish, value)
  if value > 0 then redis.pcall(publish, change, '0' .. value) end
end
