-- include_fair: functions of the scripts of the fair lock. It has no keys of its own.
--
-- The queue has two keys: a list of waiting owners in the order of their arrival, and a zset
-- owner -> deadline, the server's time in ms until which the owner counts as alive. Redisson uses the
-- same keys in another way. Each of its owners adds its timeout to the deadline of the owner before it,
-- and subtracts 300 s, or its wait time, from all deadlines when it acquires the lock.
--
-- Each owner of leasehold has its own deadline, which heartbeats extend, so the deadlines of several
-- dead owners do not add up. Its deadline is 300 s later for each foreign owner before it, because each
-- of those will subtract that much. Foreign means not of leasehold: Redisson's.
--
-- A foreign owner that waits for a shorter time subtracts less. A deadline with time for foreign owners
-- therefore ends with half a millisecond. Once none of them is before its owner, a waiter behind it removes
-- what is left of that time. Otherwise a dead owner would delay the others for so long.
--
-- No script has work that grows with the queue. A script first checks the first owner, the last one and
-- deadlines. It reads the first 100 owners only if these show a foreign owner. An owner among those
-- counts the foreign owners before it. An owner further back derives their number from its own
-- deadline, or from that of the owner before it: the part of a deadline beyond the owner's timeout is
-- 300 s for each foreign owner that has not acquired the lock yet.
--
-- A script may empty a key. While a cluster slot is migrated, such a key is gone on this node, and what
-- follows in the script fails. Each script therefore also names a key that never exists: if one of several
-- keys is missing in a slot that is being migrated, the cluster replies TRYAGAIN, and the script does not
-- run.

-- is_ours reports whether an owner is one of leasehold, which extends its deadline by heartbeats.
-- Leasehold's client uuids have version 7, Redisson's have version 4.
local function is_ours(owner)
  return string.sub(owner, 15, 15) == '7'
end

-- remove_expiry removes the expiry of the queue. It returns an error if that is denied.
local function remove_expiry(queue, timeouts)
  local done = redis.pcall('PERSIST', queue)
  if type(done) ~= 'table' then done = redis.pcall('PERSIST', timeouts) end -- mutant: always: what is denied for one key is denied for both
  if type(done) == 'table' then return done end
end

-- deadline_behind returns the deadline of an owner of leasehold with so many foreign owners before it.
local function deadline_behind(foreign, now, timeout)
  return now + timeout + foreign * 300000 + (foreign > 0 and 0.5 or 0)
end

-- first_hundred reads the first 100 owners of the queue. It returns for each how many foreign owners are
-- before it, and how many of the 100 are foreign.
local function first_hundred(queue)
  local owners, before, foreign = redis.call('LRANGE', queue, 0, 99), {}, 0
  for _, member in ipairs(owners) do
    before[member] = foreign
    if not is_ours(member) then foreign = foreign + 1 end
  end
  return before, foreign
end

-- extend_expiry makes the queue expire an hour after its last deadline, so that entries of dead owners do
-- not stay if the lock is never used again. It sets five minutes more, so that not every call has to
-- write. `new` says that the queue was empty before. It returns an error if the write is denied.
--
-- The queue must not expire while a foreign owner waits, because Redisson never extends an expiry. A
-- foreign owner in the middle of a long queue is not detected here, so a long queue without an expiry
-- gets none.
local function extend_expiry(queue, timeouts, now, timeout, foreign, new)
  local left = math.min(redis.call('PTTL', queue), redis.call('PTTL', timeouts))
  -- mutant: operand 3, always 1: speed
  foreign = foreign or not new and not is_ours(redis.call('LINDEX', queue, -1))
  -- mutant: operand 3, border: speed
  if not new and left < 0 and not foreign then
    -- mutant: border 2: an expiry is in the future
    if redis.call('LLEN', queue) > 100 and redis.call('PTTL', queue) < 0 then return end
    local done, message, count = pcall(first_hundred, queue)
    if not done then return {err = message} end -- pcall returns the error as text
    foreign = count > 0
  end
  if foreign then return remove_expiry(queue, timeouts) end
  if left >= timeout + 3600000 then return end
  local last = redis.pcall('ZREVRANGE', timeouts, 0, 0, 'WITHSCORES')
  if last.err then return last end
  local ms = string.format('%.0f', math.max(tonumber(last[2] or now) - now, 0) + 3900000)
  local done = redis.pcall('PEXPIRE', queue, ms)
  if type(done) ~= 'table' then done = redis.pcall('PEXPIRE', timeouts, ms) end -- mutant: always: what is denied for one key is denied for both
  if type(done) == 'table' then return done end
end

-- notify_owner tells an owner that it is next. An owner of leasehold gets its number on a channel of its
-- client; a foreign owner has its own channel, as Redisson expects. If publishing is denied, the script
-- continues: the message is only a reason to retry.
local function notify_owner(channel, publish, owner)
  if not is_ours(owner) then
    redis.pcall(publish, channel .. ':' .. owner, '0')
    return
  end
  local client, number = string.match(owner, '^(.*):(.*)$')
  redis.pcall(publish, channel .. ':' .. client .. ':fair', number)
end

-- remove_extra removes what is left of the extra time of the owners before the first foreign one. Each keeps at
-- least five seconds, in which a living owner sends several heartbeats.
local function remove_extra(queue, timeouts, now, timeout)
  local owners, latest = redis.call('LRANGE', queue, 0, 99), now + math.max(timeout, 5000)
  for i, deadline in ipairs(redis.call('ZMSCORE', timeouts, unpack(owners))) do
    if not is_ours(owners[i]) then return end
    if deadline and deadline % 1 > 0 then redis.pcall('ZADD', timeouts, 'XX', 'LT', latest, owners[i]) end -- if memory is full, the extra time stays
  end
end

-- first_alive removes up to 100 dead owners from the front of the queue. It returns the first living owner,
-- false, and its deadline; nil and false if there is none; nil and true if it found only dead ones, and
-- there are more. timeout is the one of the caller, for remove_extra; nil or 0 if it does not wait.
local function first_alive(queue, timeouts, now, timeout)
  local first = redis.call('LINDEX', queue, 0)
  if not first then
    if redis.call('ZCARD', timeouts) > 0 then redis.call('DEL', timeouts) end -- an operator deleted the list
    return nil, false
  end
  local deadline = redis.call('ZSCORE', timeouts, first)
  if deadline and tonumber(deadline) <= now then
    local owners, dead = redis.call('LRANGE', queue, 0, 100), 1
    local deadlines = redis.call('ZMSCORE', timeouts, unpack(owners))
    while dead < 100 and deadlines[dead + 1] and tonumber(deadlines[dead + 1]) <= now do dead = dead + 1 end
    redis.call('LTRIM', queue, dead, -1)
    redis.call('ZREM', timeouts, unpack(owners, 1, dead))
    first, deadline = owners[dead + 1], deadlines[dead + 1]
    if not first then return nil, false end
    if deadline and tonumber(deadline) <= now then return nil, true end
  end
  -- mutant: border: an expiry is in the future
  if not is_ours(first) and redis.call('PTTL', queue) >= 0 then -- owners of leasehold, which set the expiry, may have left
    redis.call('PERSIST', queue)
    redis.call('PERSIST', timeouts)
  end
  if not deadline then
    -- An operator deleted the deadlines. The owner gets one, so that it is removed if it is dead.
    deadline = now + 5000
    redis.call('ZADD', timeouts, deadline, first)
  end
  if (timeout or 0) > 0 and is_ours(first) and deadline % 1 > 0 then -- mutant: operand 2: speed
    remove_extra(queue, timeouts, now, timeout)
    deadline = redis.call('ZSCORE', timeouts, first)
  end
  return first, false, math.min(deadline, now + 1e15) -- a client of Redisson that waits forever has a deadline that no reply can express
end

-- foreign_by_deadline returns how many foreign owners are before an owner of leasehold, from the `left`
-- ms until its deadline; 0 or less means none. The number is exact unless a heartbeat of the owner is
-- more than 299 s late.
local function foreign_by_deadline(left, timeout)
  return math.ceil((left - timeout - 1000) / 300000)
end

-- foreign_in_queue returns how many foreign owners are in a queue of more than 100, of which `first` are
-- among the first 100. It reads the deadlines of the last owners. None of them yields too few. One whose
-- owner has a longer timeout yields too many, so the smallest number counts.
local function foreign_in_queue(queue, timeouts, now, timeout, size, first)
  local checked, foreign, fewest = math.min(size - 100, 100), 0, size -- mutant: operand 2: speed
  local owners = redis.call('LRANGE', queue, -checked, -1)
  local deadlines = redis.call('ZMSCORE', timeouts, unpack(owners))
  for i = checked, 1, -1 do
    local deadline = tonumber(deadlines[i] or 0)
    if not is_ours(owners[i]) then
      foreign = foreign + 1
    elseif deadline > now then
      fewest = math.min(fewest, foreign + foreign_by_deadline(deadline - now, timeout))
    end
    if foreign >= fewest then return foreign end -- mutant: never, border: speed; the result cannot become smaller
  end
  return math.min(fewest, first + size - 100 - checked + foreign)
end

-- none_foreign_before reports whether the `left` ms until the deadline of an owner of leasehold show that
-- no foreign owner is before it. A timeout of five minutes or more hides a foreign owner, and so does a
-- heartbeat that is late by most of the timeout; then the result is false.
local function none_foreign_before(left, timeout)
  return left > timeout / 2 and foreign_by_deadline(left, math.min(timeout, 290000)) == 0
end

-- foreign_before_new returns how many foreign owners are before an owner that joins the queue, which has
-- this size. The deadline of the last owner usually tells.
local function foreign_before_new(queue, timeouts, now, timeout, size)
  local tail = redis.call('LINDEX', queue, -1)
  if not tail then return 0 end
  local deadline = is_ours(tail) and redis.call('ZSCORE', timeouts, tail)
  -- mutant: never: speed
  if deadline and deadline - now > 0 and foreign_by_deadline(deadline - now, math.min(timeout, 290000)) == 0 then return 0 end
  local _, foreign = first_hundred(queue)
  if size > 100 then foreign = math.max(foreign, foreign_in_queue(queue, timeouts, now, timeout, size, foreign)) end
  return foreign
end

-- append adds owners of one client to the end of the queue, each with its deadline. If that is denied, it
-- returns an error, and none of them is in the queue.
local function append(queue, timeouts, owners, deadlines)
  local length = redis.pcall('RPUSH', queue, unpack(owners)) -- the first write: if memory is full, it fails, and leaves nothing in Redis
  if type(length) == 'table' then return length end
  local args = {}
  for i, owner in ipairs(owners) do
    args[2 * i - 1], args[2 * i] = deadlines[i], owner
  end
  local denied = redis.pcall('ZADD', timeouts, unpack(args))
  if type(denied) ~= 'table' then return end
  redis.pcall('LTRIM', queue, 0, -1 - #owners)
  return denied
end

-- next_numbers returns the numbers of the owners at the front of the queue that are of the same client as
-- owner, up to the first one that is not, at most 63, separated by spaces. The client may hand the lock off
-- to them without a command.
local function next_numbers(queue, owner)
  local client, numbers, from = string.match(owner, '^(.*:)'), {}, 0
  for _, to in ipairs({0, 7, 62}) do
    for _, member in ipairs(redis.pcall('LRANGE', queue, from, to)) do -- if the read is denied, the grant still counts
      if string.sub(member, 1, #client) ~= client then return table.concat(numbers, ' ') end
      numbers[#numbers + 1] = string.sub(member, #client + 1)
    end
    if #numbers <= to then break end -- mutant: never, border: speed
    from = to + 1
  end
  return table.concat(numbers, ' ')
end

-- dequeue removes owners from the queue. It returns an error if that is denied.
local function dequeue(queue, timeouts, owners)
  local done = redis.pcall('ZREM', timeouts, unpack(owners))
  if type(done) ~= 'table' and (done > 0 or redis.call('LLEN', queue) ~= redis.call('ZCARD', timeouts)) then
    local leaving, not_first = {}, done
    for _, owner in ipairs(owners) do leaving[owner] = true end -- mutant: removed: speed
    -- mutant: never, operand 1: speed
    for _, member in ipairs(done > 1 and redis.call('LRANGE', queue, 0, done - 1) or {}) do
      if leaving[member] then not_first = not_first - 1 end -- mutant: removed: speed
    end
    if done > 1 and not_first == 0 then -- mutant: never, border: speed
      done = redis.pcall('LTRIM', queue, done, -1)
    else
      for _, owner in ipairs(owners) do
        -- mutant: always: what is denied for one owner is denied for all
        if type(done) ~= 'table' then done = redis.pcall('LREM', queue, 1, owner) end
      end
    end
  end
  if type(done) == 'table' and done.err then return done end
  local first = redis.call('LINDEX', queue, 0)
  if first and not is_ours(first) then return remove_expiry(queue, timeouts) end
end
