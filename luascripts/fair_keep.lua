-- fair_keep: the heartbeat of waiting owners of one process.
--
-- KEYS[1]     lock      hash  owner -> hold count
-- KEYS[2]     queue     list  waiting owners, first come first
-- KEYS[3]     timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4]     never     string never there (include_fair)
-- ARGV[1]     channel   text  where an owner listens is "<channel>:<owner>"
-- ARGV[2]     publish   text  the command that reaches it: PUBLISH or SPUBLISH
-- ARGV[2*i+1] stay      ms    how long this owner keeps its place unheard
-- ARGV[2*i+2] owner     text  "<client uuid>:<number>", who should be in the queue
--
-- Returns a list. Its first number says when to look again if no message comes
-- before: the ms that are left of the lock's lease (-1 no expiry), or, when the
-- lock is free, until the first of the queue counts as dead; 0 when nobody waits.
-- Then, for each owner, 1 when it should ask now (it is its turn, or it holds the
-- lock), 0 when it waits on, -2 when it is not in the queue (any more), and may
-- only ask again.
--
-- Never queues anybody. Safe to repeat.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, publish = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = redis.call('PTTL', lock)
redis.call('ZREM', timeouts, '') -- nobody: a first write that memory limits let pass

-- Our own first: a process that is late with its heartbeat, but here before
-- anybody noticed, has lost nothing.
local members, before = redis.call('LRANGE', queue, 0, -1), {} -- of each, how many foreign ones are before it
local foreign = 0
for _, member in ipairs(members) do
  before[member] = foreign
  if not ours(member) then foreign = foreign + 1 end
end
local replies, asker = {0}, {}
for i = 1, (#ARGV - 2) / 2 do
  local stay, owner = tonumber(ARGV[2 * i + 1]), ARGV[2 * i + 2]
  asker[owner] = i
  if before[owner] then
    redis.call('ZADD', timeouts, now + before[owner] * 300000 + stay, owner)
    replies[i + 1] = 0
  elseif left ~= -2 and redis.pcall('HEXISTS', lock, owner) == 1 then
    replies[i + 1] = 1
  else
    replies[i + 1] = -2
  end
end

local first, deadline = head(queue, timeouts, now)
if left ~= -2 then
  replies[1] = left
elseif first then
  replies[1] = math.max(deadline - now, 1)
  if asker[first] then
    replies[asker[first] + 1] = 1
  elseif members[1] ~= first or not ours(first) then
    redis.pcall(publish, channel .. ':' .. first, '0') -- who was told of the release was one of the dead
  end
end
if first then outlive(queue, timeouts, now) end
return replies
