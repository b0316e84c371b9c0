-- semaphore_release: an owner gives its permits back, or leaves the queue.
-- include: reply, time, semaphore
-- later: semaphore_queue
--
-- KEYS[1]   free    string how many permits are free
-- KEYS[2]   leases  zset   permit -> ms until which it is held
-- KEYS[3]   queue   list   waiting owners, in the order of their arrival
-- KEYS[4]   alive   zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5]   never   string never there (include_semaphore)
-- ARGV[1]   owner   text   "<client uuid>:<number>:<permits>"
-- ARGV[2]   leave   count  1 only asks; 0 gives everything back
-- ARGV[3]   channel text   the channel of a client begins with it (include_semaphore)
-- ARGV[4]   change  text   where Redisson's clients listen
-- ARGV[5]   publish text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[i+5] id      text   each permit of the owner
--
-- Returns 1 when the owner has all its permits, or had them before this call.
-- Returns -2 when it has not all of them: they were lost, it only waited, or an earlier copy of this call gave
-- them back. Those that it has are given back all the same.
-- Returns -4 when a key holds something else; only the place in the queue is given up.
--
-- The waiters that can take their permits then are told. Safe to repeat, and it never touches another owner's permit.
local free, leases, queue, alive, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, leave, channel, change, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local ids = {}
for i = 1, #ARGV - 5 do
  local id = ARGV[i + 5]
  ids[i] = id
end

local value, held, answer = stock(free, leases)
if not held and answer ~= -4 then return answer end
local have = {}
if held then
  for i, at in ipairs(redis.call('ZMSCORE', leases, unpack(ids))) do
    if at then have[#have + 1] = ids[i] end
  end
end
local verdict = held and (#have == #ids and 1 or -2) or -4 -- mutant: operand 6: a reply has true as 1
if leave == '1' then
  if held then redis.call('ZREM', leases, '') end -- no such member: a replica, whose data may be old, refuses it
  return verdict
end

local long = redis.call('LLEN', queue)
local waited = depart(queue, alive, owner, long)
if failed(waited) then return waited end
if not value then -- deleted by hand: the next acquisition counts what is held
  if #have > 0 then redis.call('ZREM', leases, unpack(have)) end
  return verdict
end
local now_free, living, dropped = value + #have, {}, 0
if now_free > 0 and long - waited > 0 then -- mutant: always, operand, border: speed
  living, dropped = later().queued(queue, alive, clock(), true)
end
if #have > 0 then
  redis.call('INCRBY', free, #have) -- after ZREM, a first write that memory limits let through
  redis.call('ZREM', leases, unpack(have))
end
if waited == 1 or dropped > 0 then value = 0 end -- the waiters behind one that is gone can have permits that were free before
-- mutant: always, border: speed
if #living > 0 then later().spread(channel, publish, living, now_free, value) end
if #have > 0 then announce(change, publish, now_free) end
return verdict
