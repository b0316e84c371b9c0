-- semaphore_keep: the heartbeat of waiting owners of one process.
-- include: time, semaphore, semaphore_queue
--
-- KEYS[1]     free    string how many permits are free
-- KEYS[2]     leases  zset   permit -> ms until which it is held
-- KEYS[3]     queue   list   waiting owners, in the order of their arrival
-- KEYS[4]     alive   zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5]     never   string never there (include_semaphore)
-- ARGV[1]     channel text   the channel of a client begins with it (include_semaphore)
-- ARGV[2]     change  text   where Redisson's clients listen
-- ARGV[3]     publish text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[4]     total   count  how many permits there must be; 0 does not say
-- ARGV[5]     last    count  1 drops the dead, and reclaims permits; 0 does not, as more heartbeats of this process follow
-- ARGV[2*i+4] stay    ms     how long this owner's place lives without a heartbeat
-- ARGV[2*i+5] owner   text   "<client uuid>:<number>:<permits>", which should be in the queue
--
-- Returns a list. Its first number says after how many ms to look again if no message comes before: when the first lease
-- runs out (-1 never); 0 when a key holds something else. Then, for each owner, 1 when it should ask now (it is its
-- turn, or waiting is in vain: there is no semaphore any more, or one with another total), 0 when it waits on, -2
-- when it is not in the queue and has to ask anew.
--
-- It adds no owner to the queue. Safe to repeat.
local free, leases, queue, alive, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel, change, publish, total, last = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'

local value, held, answer = stock(free, leases)
if not held and answer ~= -4 then return answer end
local stays, owners, replies, asker = {}, {}, {0}, {}
for i = 1, (#ARGV - 5) / 2 do
  local stay, owner = tonumber(ARGV[2 * i + 4]), ARGV[2 * i + 5]
  stays[i], owners[i], replies[i + 1], asker[owner] = stay, owner, 1, i
end
if not value then return replies end
local there, now = value + held, clock()
redis.call('ZREM', alive, '') -- no such member: a first write that memory limits let through

-- Our own owners come first: a process that is late with its heartbeat, but here before it was dropped, has lost
-- nothing.
local deadlines = #owners > 0 and redis.call('ZMSCORE', alive, unpack(owners))
local whole = redis.call('LLEN', queue) >= redis.call('ZCARD', alive) -- an owner with a deadline is in the queue
local kept, longest = {}, 0
for i, owner in ipairs(owners) do
  if not whole or not deadlines[i] then
    replies[i + 1] = -2
  elseif (wants(owner) <= there or there <= 0) and (total == 0 or there == total) then
    replies[i + 1] = 0
  end
  if deadlines[i] then
    kept[#kept + 1] = string.format('%.0f', now + stays[i])
    kept[#kept + 1] = owner
    longest = math.max(longest, stays[i])
  end
end
if #kept > 0 then
  redis.call('ZADD', alive, unpack(kept))
  local denied = linger(queue, alive, longest)
  if denied then return denied end
end

local before = value
if last then value = value + reclaim(free, leases, now) end
local living, dropped = queued(queue, alive, now, last)
local sum = 0
for _, waiter in ipairs(living) do
  sum = sum + wants(waiter)
  if sum > value then break end
  if asker[waiter] then
    replies[asker[waiter] + 1] = 1
  elseif value > before or dropped > 0 then
    invite(channel, publish, waiter)
  end
end
if value > before then announce(change, publish, value) end
replies[1] = pause(leases, now)
return replies
