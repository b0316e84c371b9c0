-- fair_keep: the heartbeat of waiting owners of one process.
-- include: time, plain, fair
--
-- KEYS[1]     lock      hash  owner -> hold count
-- KEYS[2]     queue     list  waiting owners, in the order of their arrival
-- KEYS[3]     timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4]     never     string never there (include_fair)
-- ARGV[1]     channel   text  the channel of an owner begins with it (include_fair)
-- ARGV[2]     publish   text  the command that reaches it: PUBLISH or SPUBLISH
-- ARGV[3]     last      count 1 drops the dead; 0 does not, as more heartbeats of this process follow
-- ARGV[2*i+2] stay      ms    how long this owner's place lives without a heartbeat
-- ARGV[2*i+3] owner     text  "<client uuid>:<number>", which should be in the queue
--
-- Returns a list. Its first number says when to look again if no message comes
-- before: the ms that are left of the lock's lease (-1 no expiry), or, when the
-- lock is free, until the first of the queue counts as dead; 0 when no owner waits.
-- Then, for each owner, 1 when it should ask now (it is its turn, it holds the
-- lock, or the key holds something else), 0 when it waits on, -2 when it is not in the
-- queue, or that cannot be told, and it has to ask anew.
--
-- It adds no owner to the queue. Safe to repeat.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, publish, last = ARGV[1], ARGV[2], ARGV[3] == '1'

local now = clock()
local fields, answer = plain(lock)
if not fields and answer ~= -4 then return answer end
local stays, owners, replies = {}, {}, {0}
for i = 1, (#ARGV - 3) / 2 do
  local stay, owner = tonumber(ARGV[2 * i + 2]), ARGV[2 * i + 3]
  stays[i], owners[i], replies[i + 1] = stay, owner, 1
end
if not fields then return replies end
local left = redis.call('PTTL', lock)
redis.call('ZREM', timeouts, '') -- no such member: a first write that memory limits let through

-- Our own owners come first: a process that is late with its heartbeat, but here before
-- it was dropped, has lost nothing.
local before, foreign, was = near(queue)
local size = redis.call('LLEN', queue)
local long = size > 100 and size >= redis.call('ZCARD', timeouts) -- an owner with a deadline is in the queue
local deadlines = #owners > 0 and redis.call('ZMSCORE', timeouts, unpack(owners))
local asker, holder, kept, waits = {}, {}, {}, foreign
for i = 1, #fields, 2 do holder[fields[i]] = true end
for i, owner in ipairs(owners) do
  asker[owner] = i
  local count = before[owner]
  if not count and long and deadlines[i] then count = math.max(foreign, expected(deadlines[i] - now, stays[i])) end
  if count then
    kept[#kept + 1] = now + stays[i] + count * 300000
    kept[#kept + 1] = owner
    waits = math.max(waits, count)
    replies[i + 1] = 0
  elseif not holder[owner] then
    replies[i + 1] = -2
  end
end
if #kept > 0 then redis.call('ZADD', timeouts, unpack(kept)) end
if size > 100 and not ours(redis.call('LINDEX', queue, -1)) then waits = 1 end

local first, more, deadline = was, false, now
if last then first, more, deadline = head(queue, timeouts, now) end
if left ~= -2 then
  replies[1] = left
elseif more then
  replies[1] = 1
elseif first then
  replies[1] = math.max(deadline - now, 1)
  if asker[first] then
    replies[asker[first] + 1] = 1
  elseif last and (was ~= first or not ours(first)) then
    tell(channel, publish, first) -- the owner that the release told was one of the dead
  end
end
if first or more then outlive(queue, timeouts, now, waits > 0) end
return replies
