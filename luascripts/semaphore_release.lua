-- semaphore_release: releases permits, or removes an owner from the queue.
-- later: semaphore_release
--
-- KEYS[1]   free              string the number of free permits
-- KEYS[2]   leases            zset   held permit -> ms at which its lease expires
-- KEYS[3]   queue             list   waiting owners, in the order of their arrival
-- KEYS[4]   timeouts          zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5]   never             string a key that never exists (include_semaphore)
-- ARGV[1]   owner             text   "<client uuid>:<number>:<permits>"
-- ARGV[2]   leave             count  0 releases everything; 1 only checks
-- ARGV[3]   channel           text   what the channels of clients begin with (include_semaphore_queue)
-- ARGV[4]   redisson_channel  text   the channel of Redisson's clients
-- ARGV[5]   publish           text   the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[6]   id                text   the id of a permit of the owner
-- ARGV[i+6] other             text   the ids of its other permits
--
-- Returns 1 if the owner held all its permits before this call.
-- Returns -2 if it did not: permits were lost, it only waited, or an earlier copy of this call released them.
-- Those that it still held are released anyway.
-- Returns -4 if a key has the wrong type; only the queue position was removed.
--
-- The waiters that can acquire their permits now are notified.
--
-- Safe to repeat: it never touches a permit of another owner.
local free, leases, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, leave, channel, redisson_channel, publish, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local ids = {id}
for i = 1, #ARGV - 6 do
  local other = ARGV[i + 6]
  ids[i + 1] = other
end

-- Fast path for the usual case: no owner is in the queue. Defining all functions takes longer than such a call. A command that
-- fails here is repeated by release_permits, which returns the error.
local n, text = #ids, redis.pcall('GET', free)
-- mutant: never 1, never 2, operand 3, operand 4: speed
local value = type(text) == 'string' and (text == '0' or string.find(text, '^[1-9]'))
-- mutant: never 1, never 2: speed
local no_waiters = value and redis.pcall('LLEN', queue) == 0 and redis.pcall('ZCARD', timeouts) == 0
-- mutant: never: speed
if no_waiters and leave == '0' then
  local free_now = redis.pcall('INCRBY', free, n)
  if type(free_now) == 'number' then
    local removed = redis.pcall('ZREM', leases, unpack(ids)) -- mutant: removed: speed
    if type(removed) ~= 'number' then removed = 0 end
    if removed < n then free_now = redis.call('INCRBY', free, removed - n) end -- mutant: always, border: speed
    if removed > 0 then
      redis.pcall(publish, redisson_channel, '0' .. free_now) -- as notify_redisson does
      return removed == n and 1 or -2 -- mutant: operand 3: true is replied as 1
    end
  end
end
return later().release_permits(free, leases, queue, timeouts, owner, ids, leave, channel, redisson_channel, publish)
