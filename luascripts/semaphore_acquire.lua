-- semaphore_acquire: an owner takes permits if it is its turn, or enters the queue.
-- later: semaphore_take
--
-- KEYS[1]   free    string how many permits are free
-- KEYS[2]   leases  zset   permit -> ms until which it is held
-- KEYS[3]   queue   list   waiting owners, in the order of their arrival
-- KEYS[4]   alive   zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5]   never   string never there (include_semaphore)
-- ARGV[1]   owner   text   "<client uuid>:<number>:<permits>"
-- ARGV[2]   lease   ms     what the permits live on without a renewal
-- ARGV[3]   stay    ms     how long its place lives without a heartbeat; 0 does not queue
-- ARGV[4]   total   count  how many permits there must be; 0 leaves that to the one that made the semaphore
-- ARGV[5]   channel text   the channel of a client begins with it (include_semaphore)
-- ARGV[6]   change  text   where Redisson's clients listen
-- ARGV[7]   publish text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[8]   id      text   a permit that it takes
-- ARGV[i+8] other   text   each other permit that it takes
--
-- Returns "0" when the owner has all its permits now.
-- Returns {n, 0}: others have the permits or are before this owner, and for n ms nothing will happen by
-- itself (-1 never). The owner is in the queue unless stay is 0.
-- Returns -4: a key holds something else; nothing was done.
-- Returns an error PERMITS <n> when there are n permits in all, and the handle says another number or the owner
-- wants more than n, unless n is zero or less and the handle says no number; and PERMITS absent when there is no semaphore and the handle does not say a number. Nothing
-- was done.
--
-- Safe to repeat: permits that the owner has count as taken, and their lease is lengthened. An owner in the queue keeps
-- its place, and the call counts as a heartbeat.
local free, leases, queue, alive, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, stay, total = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, change, publish, id = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local ids = {id}
for i = 1, #ARGV - 8 do
  local other = ARGV[i + 8]
  ids[i + 1] = other
end

-- Most permits are free, and no owner is in the queue. To make all the functions takes longer than to take such a permit. What
-- fails here has changed nothing, and is an answer there.
local n, text, held = #ids, redis.pcall('GET', free), redis.pcall('ZCARD', leases)
local value = type(text) == 'string' and string.find(text, '^[1-9]') and type(held) == 'number' and tonumber(text)
-- mutant: never, operand 6, border: speed
if value and value >= n and (total == 0 or value + held == total) and redis.pcall('LLEN', queue) == 0 then
  -- mutant: always, operand 1, border: speed
  local first = held > 0 and redis.call('ZRANGE', leases, '0', '0')[1] -- of another size in a zset of the application
  local had = false
  if first then -- mutant: always: speed
    for _, at in ipairs(redis.call('ZMSCORE', leases, unpack(ids))) do had = had or at end -- mutant: operand 1: ZADD then finds the first
  end
  -- mutant: never: speed
  if not had and (not first or #first == 16) then
    local time, expiry = redis.call('TIME'), first and -1 or redis.call('PTTL', free) -- a semaphore of Redisson's may have an expiry
    if type(redis.pcall('INCRBY', free, '-' .. n)) == 'number' then
      local score, denied = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + lease), false
      for _, each in ipairs(ids) do
        denied = denied or redis.pcall('ZADD', leases, score, each) ~= 1 -- mutant: operand 1: what is denied for one is denied for each
      end
      if not denied then
        if expiry > 0 then redis.pcall('PEXPIRE', leases, expiry) end -- mutant: border: an expiry is in the future
        return '0'
      end
      redis.call('INCRBY', free, n)
    end
  end
end
return later().permitted(free, leases, queue, alive, owner, ids, lease, stay, total, channel, change, publish)
