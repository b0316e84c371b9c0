-- semaphore_release: an owner gives its permits back, or leaves the queue.
-- later: semaphore_give
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
-- ARGV[6]   id      text   a permit of the owner
-- ARGV[i+6] other   text   each other permit of the owner
--
-- Returns 1 when the owner has all its permits, or had them before this call.
-- Returns -2 when it has not all of them: they were lost, it only waited, or an earlier copy of this call gave
-- them back. Those that it has are given back all the same.
-- Returns -4 when a key holds something else; only the place in the queue is given up.
--
-- The waiters that can take their permits then are told. Safe to repeat, and it never touches another owner's permit.
local free, leases, queue, alive, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, leave, channel, change, publish, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local ids = {id}
for i = 1, #ARGV - 6 do
  local other = ARGV[i + 6]
  ids[i + 1] = other
end

-- Mostly no owner is in the queue. To make all the functions takes longer than to give a permit back then. What fails here has changed
-- nothing, and is an answer there.
local n, text = #ids, redis.pcall('GET', free)
local value = type(text) == 'string' and (text == '0' or string.find(text, '^[1-9]'))
local none = value and redis.pcall('LLEN', queue) == 0 and redis.pcall('ZCARD', alive) == 0
-- mutant: never: speed
if none and leave == '0' then
  local now_free = redis.pcall('INCRBY', free, n)
  if type(now_free) == 'number' then
    local had = redis.pcall('ZREM', leases, unpack(ids))
    if type(had) ~= 'number' then had = 0 end
    if had < n then now_free = redis.call('INCRBY', free, had - n) end -- mutant: always, border: speed
    if had > 0 then
      redis.pcall(publish, change, '0' .. now_free) -- as announce does
      return had == n and 1 or -2
    end
  end
end
return later().put_back(free, leases, queue, alive, owner, ids, leave, channel, change, publish)
