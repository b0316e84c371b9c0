-- semaphore_keep: extends the deadlines of waiting owners of one client (heartbeat).
-- include: time, semaphore, semaphore_queue
--
-- KEYS[1]     free              string the number of free permits
-- KEYS[2]     leases            zset   held permit -> ms at which its lease expires
-- KEYS[3]     queue             list   waiting owners, in the order of their arrival
-- KEYS[4]     timeouts          zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5]     never             string a key that never exists (include_semaphore)
-- ARGV[1]     channel           text   what the channels of clients begin with (include_semaphore_queue)
-- ARGV[2]     redisson_channel  text   the channel of Redisson's clients
-- ARGV[3]     publish           text   the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[4]     total             count  the required total of permits; 0 accepts any
-- ARGV[5]     last              count  1 removes dead waiters and frees expired permits; 0 does not, because more heartbeats of this client follow
-- ARGV[2*i+4] timeout           ms     how long this owner counts as alive without a heartbeat
-- ARGV[2*i+5] owner             text   "<client uuid>:<number>:<permits>", which should be in the queue
--
-- Returns a list. Its first number is the time in ms after which to call the script again if no message arrives
-- before: until the first lease expires (-1 never); 0 if a key has the wrong type.
-- Then there is one number for each owner. 1: send a request now, because it is the owner's turn, or because
-- the request fails (there is no semaphore, or its total is different). 0: wait on. -2: the owner is not in the
-- queue, and must send a request to join again.
--
-- Safe to repeat: it adds no owner to the queue.
local free, leases, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel, redisson_channel, publish, total, last = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'

local value, held, answer = read_permits(free, leases)
if not held and answer ~= -4 then return answer end
local timeouts_of, owners, replies, index_of = {}, {}, {0}, {}
for i = 1, (#ARGV - 5) / 2 do
  local timeout, owner = tonumber(ARGV[2 * i + 4]), ARGV[2 * i + 5]
  timeouts_of[i], owners[i], replies[i + 1], index_of[owner] = timeout, owner, 1, i
end
if not value then return replies end
local actual_total, now = value + held, clock()
redis.call('ZREM', timeouts, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest

-- The owners of this call come before the removal of dead ones: a heartbeat that is late, but arrives before its
-- owner was removed, keeps the position.
local deadlines = #owners > 0 and redis.call('ZMSCORE', timeouts, unpack(owners))
local consistent = redis.call('LLEN', queue) >= redis.call('ZCARD', timeouts) -- then an owner with a deadline is also in the list
local extended, longest_timeout = {}, 0
for i, owner in ipairs(owners) do
  if not consistent or not deadlines[i] then
    replies[i + 1] = -2
  elseif (wanted_permits(owner) <= actual_total or actual_total <= 0) and (total == 0 or actual_total == total) then
    replies[i + 1] = 0
  end
  if deadlines[i] then
    extended[#extended + 1] = string.format('%.0f', now + timeouts_of[i])
    extended[#extended + 1] = owner
    longest_timeout = math.max(longest_timeout, timeouts_of[i])
  end
end
if #extended > 0 then
  redis.call('ZADD', timeouts, unpack(extended))
  local denied = extend_queue(queue, timeouts, longest_timeout)
  if denied then return denied end
end

local before = value
if last then value = value + reclaim_expired(free, leases, now) end
local waiters, removed = living_waiters(queue, timeouts, now, last)
local needed = 0
for _, waiter in ipairs(waiters) do
  needed = needed + wanted_permits(waiter)
  if needed > value then break end
  if index_of[waiter] then
    replies[index_of[waiter] + 1] = 1
  elseif value > before or removed > 0 then
    notify_waiter(channel, publish, waiter)
  end
end
if value > before then notify_redisson(redisson_channel, publish, value) end
replies[1] = next_expiry(leases, now)
return replies
