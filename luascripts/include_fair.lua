-- include_fair: functions of the scripts of the fair lock. It has no keys of its own.
--
-- The queue is a list of waiting owners, in the order of their arrival, and a zset
-- waiting owner -> deadline, the server's time in ms until which the owner counts as
-- alive. Redisson's owners put one deadline on top of another's, and take 300 s (or
-- the wait that they were given) off all deadlines when they acquire the lock. Ours
-- have deadlines of their own, which heartbeats move; so the deadlines of several dead do
-- not add up. A deadline of ours is 300 s later for each foreign owner
-- before it: it is right again when those have been served.
--
-- No script has work that grows with the queue. As long as no foreign owner is to be seen at
-- the head, at the tail or in the deadlines, a script looks at these alone. If one is, the
-- script reads a hundred owners at most. So an owner of ours among the first hundred
-- counts the foreign owners before it. An owner behind them takes the number from its own
-- deadline, or from that of the owner before it: the part of a deadline beyond the patience
-- is 300 s for each foreign owner that is not served yet.
--
-- While a slot moves between nodes of a cluster, a key that a script empties is gone,
-- and what comes after it in the script fails. So each script names a key that never
-- exists: a cluster answers TRYAGAIN when one of several keys is missing in a slot
-- that moves.

-- ours reports whether an owner renews its place by a heartbeat: leasehold's
-- clients have a uuid of version 7, Redisson's one of version 4.
local function ours(owner)
  return string.sub(owner, 15, 15) == '7'
end

-- unbound takes the expiry off the queue. It returns an error if that is denied.
local function unbound(queue, timeouts)
  local done = redis.pcall('PERSIST', queue)
  if type(done) ~= 'table' then done = redis.pcall('PERSIST', timeouts) end -- mutant: always: what is denied for one key is denied for both
  if type(done) == 'table' then return done end
end

-- near looks at the first hundred of the queue. It returns how many foreign
-- owners are before each of them, and how many foreign ones there are.
local function near(queue)
  local members, before, foreign = redis.call('LRANGE', queue, 0, 99), {}, 0
  for _, member in ipairs(members) do
    before[member] = foreign
    if not ours(member) then foreign = foreign + 1 end
  end
  return before, foreign
end

-- outlive makes the queue expire an hour after its last deadline, so that the traces of
-- the dead do not stay when no owner ever comes again. It sets five minutes more, and so
-- need not write at each call. `new` says that the queue was empty before.
--
-- The queue does not expire while a foreign owner waits: Redisson never lengthens an expiry,
-- and may go on with this queue for longer. A foreign owner in the middle of a long queue is
-- not seen here; so a long queue that has no expiry gets none. It returns an error if
-- that is denied.
local function outlive(queue, timeouts, now, stay, foreign, new)
  local left = math.min(redis.call('PTTL', queue), redis.call('PTTL', timeouts))
  -- mutant: operand 3, always 1: speed
  foreign = foreign or not new and not ours(redis.call('LINDEX', queue, -1))
  -- mutant: operand 3, border: speed
  if not new and left < 0 and not foreign then
    -- mutant: border 2: an expiry is in the future
    if redis.call('LLEN', queue) > 100 and redis.call('PTTL', queue) < 0 then return end
    local done, fault, among = pcall(near, queue)
    if not done then return {err = fault} end -- what pcall says is a text
    foreign = among > 0
  end
  if foreign then return unbound(queue, timeouts) end
  if left >= stay + 3600000 then return end
  local last = redis.pcall('ZREVRANGE', timeouts, 0, 0, 'WITHSCORES')
  if last.err then return last end
  local ms = string.format('%.0f', math.max(tonumber(last[2] or now) - now, 0) + 3900000)
  local done = redis.pcall('PEXPIRE', queue, ms)
  if type(done) ~= 'table' then done = redis.pcall('PEXPIRE', timeouts, ms) end -- mutant: always: what is denied for one key is denied for both
  if type(done) == 'table' then return done end
end

-- tell tells an owner that it is its turn: an owner of ours by its number, at a channel of its
-- client; another one as Redisson does, at a channel of its own. Its refusal must not
-- undo anything: the message is only a reason to ask.
local function tell(channel, publish, owner)
  if not ours(owner) then
    redis.pcall(publish, channel .. ':' .. owner, '0')
    return
  end
  local client, number = string.match(owner, '^(.*):(.*)$')
  redis.pcall(publish, channel .. ':' .. client .. ':fair', number)
end

-- head drops the dead from the head of the queue, a hundred at most. It returns the
-- first living owner, false, and its deadline; nil and false if there is none;
-- nil and true if it found only dead ones, and there are more.
local function head(queue, timeouts, now)
  local first = redis.call('LINDEX', queue, 0)
  if not first then
    if redis.call('ZCARD', timeouts) > 0 then redis.call('DEL', timeouts) end -- the queue was deleted by hand
    return nil, false
  end
  local deadline = redis.call('ZSCORE', timeouts, first)
  if deadline and tonumber(deadline) <= now then
    local members, dead = redis.call('LRANGE', queue, 0, 100), 1
    local deadlines = redis.call('ZMSCORE', timeouts, unpack(members))
    while dead < 100 and deadlines[dead + 1] and tonumber(deadlines[dead + 1]) <= now do dead = dead + 1 end
    redis.call('LTRIM', queue, dead, -1)
    redis.call('ZREM', timeouts, unpack(members, 1, dead))
    first, deadline = members[dead + 1], deadlines[dead + 1]
    if not first then return nil, false end
    if deadline and tonumber(deadline) <= now then return nil, true end
  end
  -- mutant: border: an expiry is in the future
  if not ours(first) and redis.call('PTTL', queue) >= 0 then -- our owners that gave it an expiry may be gone
    redis.call('PERSIST', queue)
    redis.call('PERSIST', timeouts)
  end
  if not deadline then
    -- The deadlines were deleted by hand. The owner gets one, so that it is dropped if it is dead.
    deadline = now + 5000
    redis.call('ZADD', timeouts, deadline, first)
  end
  return first, false, tonumber(deadline)
end

-- expected returns how many foreign owners a deadline of ours counts on, if `left` ms of it
-- are left; 0 or less is none. That is exact while the owner is less than 299 s late with its heartbeat.
local function expected(left, patience)
  return math.ceil((left - patience - 1000) / 300000)
end

-- behind returns how many foreign owners there are in a queue of more than a hundred, if
-- `first` of them are among the first hundred. It asks the deadlines of the owners at the tail: none of them says
-- too few, but one with a longer patience says too many, so the least of them counts.
local function behind(queue, timeouts, now, patience, size, first)
  local seen, foreign, least = math.min(size - 100, 100), 0, size -- mutant: operand 2: speed
  local members = redis.call('LRANGE', queue, -seen, -1)
  local deadlines = redis.call('ZMSCORE', timeouts, unpack(members))
  for i = seen, 1, -1 do
    local deadline = tonumber(deadlines[i] or 0)
    if not ours(members[i]) then
      foreign = foreign + 1
    elseif deadline > now then
      least = math.min(least, foreign + expected(deadline - now, patience))
    end
    if foreign >= least then return foreign end -- mutant: never, border: speed; it gets no less
  end
  return math.min(least, first + size - 100 - seen + foreign)
end

-- alone reports whether a deadline of ours, of which `left` ms are left, says that no foreign
-- owner is before its owner. A patience of five minutes and more hides one; so does a
-- heartbeat that is late for most of the patience.
local function alone(left, patience)
  return left > patience / 2 and expected(left, math.min(patience, 290000)) == 0
end

-- arrivals returns how many foreign owners are before an owner that enters the queue of
-- that size at its end. As a rule the owner at the tail tells.
local function arrivals(queue, timeouts, now, patience, size)
  local tail = redis.call('LINDEX', queue, -1)
  if not tail then return 0 end
  local deadline = ours(tail) and redis.call('ZSCORE', timeouts, tail)
  -- mutant: never: speed
  if deadline and deadline - now > 0 and expected(deadline - now, math.min(patience, 290000)) == 0 then return 0 end
  local _, foreign = near(queue)
  if size > 100 then foreign = math.max(foreign, behind(queue, timeouts, now, patience, size, foreign)) end
  return foreign
end

-- enter puts these owners of one client at the end of the queue, each with its deadline. It
-- returns an error if that is refused; then none of them is in the queue.
local function enter(queue, timeouts, owners, deadlines)
  local length = redis.pcall('RPUSH', queue, unpack(owners)) -- refused here when memory is full: nothing is left in Redis
  if type(length) == 'table' then return length end
  local pairs = {}
  for i, owner in ipairs(owners) do
    pairs[2 * i - 1], pairs[2 * i] = deadlines[i], owner
  end
  local denied = redis.pcall('ZADD', timeouts, unpack(pairs))
  if type(denied) ~= 'table' then return end
  redis.pcall('LTRIM', queue, 0, -1 - #owners)
  return denied
end

-- following returns the numbers of the owners at the head of the queue that are of the same
-- client as owner, up to the first that is not, 63 at most: a text with a space between two.
local function following(queue, owner)
  local client, numbers, from = string.match(owner, '^(.*:)'), {}, 0
  for _, to in ipairs({0, 7, 62}) do
    for _, member in ipairs(redis.pcall('LRANGE', queue, from, to)) do -- a refusal must not undo a grant
      if string.sub(member, 1, #client) ~= client then return table.concat(numbers, ' ') end
      numbers[#numbers + 1] = string.sub(member, #client + 1)
    end
    if #numbers <= to then break end -- mutant: never, border: speed
    from = to + 1
  end
  return table.concat(numbers, ' ')
end

-- dequeue takes these owners out of the queue. It returns an error if that is denied.
local function dequeue(queue, timeouts, owners)
  local done = redis.pcall('ZREM', timeouts, unpack(owners))
  if type(done) ~= 'table' and (done > 0 or redis.call('LLEN', queue) ~= redis.call('ZCARD', timeouts)) then
    local leave, leading = {}, done
    for _, owner in ipairs(owners) do leave[owner] = true end -- mutant: removed: speed
    -- mutant: never, operand 1: speed
    for _, member in ipairs(done > 1 and redis.call('LRANGE', queue, 0, done - 1) or {}) do
      if leave[member] then leading = leading - 1 end -- mutant: removed: speed
    end
    if done > 1 and leading == 0 then -- mutant: never, border: speed
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
  if first and not ours(first) then return unbound(queue, timeouts) end
end
