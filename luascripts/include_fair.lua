-- include_fair: what the scripts of the fair lock share. It has no keys of its own.
--
-- The queue is a list of waiting owners, first come first, and beside it a zset
-- waiting owner -> deadline, the server's time in ms until which it is believed
-- to be alive. Redisson's owners put one deadline on top of another's, and take
-- 300 s (or what they were told to wait) off everybody's when they come to hold
-- the lock. Ours have deadlines of their own, which heartbeats move; so the
-- deadlines of many dead do not add up.
--
-- While a slot moves between nodes of a cluster, a key that a script empties is gone,
-- and what comes after it in the script fails. So each script names a key that never
-- exists: a cluster answers TRYAGAIN when one of several keys is missing in a slot
-- that moves.

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
-- taken their 300 s off.
local function patience(members, owner, p)
  for _, member in ipairs(members) do
    if member == owner then break end
    if not ours(member) then p = p + 300000 end
  end
  return p
end

-- dequeue takes owner out of the queue. It returns an error if it may not.
local function dequeue(queue, timeouts, owner)
  local done = redis.pcall('ZREM', timeouts, owner)
  if type(done) ~= 'table' then done = redis.pcall('LREM', queue, 1, owner) end
  if type(done) == 'table' then return done end
end

-- outlive lets the queue vanish an hour after its last deadline, so that the
-- traces of the dead do not stay when nobody ever comes again. It returns an error
-- if it may not.
local function outlive(queue, timeouts, now)
  local last = redis.pcall('ZREVRANGE', timeouts, 0, 0, 'WITHSCORES')
  if last.err then return last end
  local ms = string.format('%.0f', math.max(tonumber(last[2] or now) - now, 0) + 3600000)
  local done = redis.pcall('PEXPIRE', queue, ms)
  if type(done) ~= 'table' then done = redis.pcall('PEXPIRE', timeouts, ms) end
  if type(done) == 'table' then return done end
end
