-- include_fair: what the scripts of the fair lock share. It has no keys of its own.
--
-- The queue is a list of waiting owners, first come first, and beside it a zset
-- waiting owner -> deadline, the server's time in ms until which it is believed
-- to be alive. Redisson's owners put one deadline on top of another's, and take
-- 300 s (or what they were told to wait) off everybody's when they come to hold
-- the lock. Ours have deadlines of their own, which heartbeats move; so the
-- deadlines of many dead do not add up.

-- ours reports whether an owner keeps its place by a heartbeat: leasehold's
-- clients have a uuid of version 7, Redisson's one of version 4.
local function ours(owner)
  return string.sub(owner, 15, 15) == '7'
end

-- head drops the dead from the head of the queue, and returns the first owner
-- who is alive, with its deadline; nil if there is none.
local function head(queue, timeouts, now)
  while true do
    local first = redis.call('LINDEX', queue, 0)
    if not first then return nil end
    local deadline = tonumber(redis.call('ZSCORE', timeouts, first) or nil)
    if not deadline then
      -- Somebody deleted the deadlines. It gets one, so that it is found out if dead.
      deadline = now + 5000
      redis.call('ZADD', timeouts, deadline, first)
    end
    if deadline > now then return first, deadline end
    redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, first)
  end
end

-- patience returns how far ahead of now the deadline of owner must lie, so that
-- p of it is left when the foreign waiters before it have been served and have
-- taken theirs off.
local function patience(members, timeouts, owner, now, p)
  local foreign, latest = 0, now
  for _, member in ipairs(members) do
    if member == owner then break end
    if not ours(member) then
      foreign = foreign + 1
      latest = math.max(latest, tonumber(redis.call('ZSCORE', timeouts, member) or now))
    end
  end
  return math.max(foreign * 300000, latest - now) + p
end

-- dequeue takes owner out of the queue. Foreign waiters behind it counted from
-- its deadline; what was left of that is taken off theirs, as their own scripts do.
local function dequeue(queue, timeouts, owner, now)
  local deadline = tonumber(redis.call('ZSCORE', timeouts, owner) or nil)
  local latest = tonumber(redis.call('ZREVRANGE', timeouts, 0, 0, 'WITHSCORES')[2] or nil)
  if deadline and deadline > now and latest > now + 60000 then -- less is not worth the look
    local members = redis.call('LRANGE', queue, 0, -1)
    local share = deadline - now - patience(members, timeouts, owner, now, 0)
    local behind = false
    for _, member in ipairs(members) do
      if behind and share > 0 and not ours(member) then redis.call('ZINCRBY', timeouts, -share, member) end
      behind = behind or member == owner
    end
  end
  redis.call('LREM', queue, 1, owner)
  redis.call('ZREM', timeouts, owner)
end

-- outlive lets the queue vanish an hour after its last deadline, so that the
-- traces of the dead do not stay when nobody ever comes again.
local function outlive(queue, timeouts, now)
  local latest = tonumber(redis.call('ZREVRANGE', timeouts, 0, 0, 'WITHSCORES')[2] or now)
  local ms = string.format('%.0f', math.max(latest - now, 0) + 3600000)
  redis.call('PEXPIRE', queue, ms)
  redis.call('PEXPIRE', timeouts, ms)
end
