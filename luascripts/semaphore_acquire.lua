-- semaphore_acquire: acquires permits if it is the owner's turn, or adds the owner to the queue.
-- later: semaphore_acquire
--
-- KEYS[1]   free              string the number of free permits
-- KEYS[2]   leases            zset   held permit -> ms at which its lease expires
-- KEYS[3]   queue             list   waiting owners, in the order of their arrival
-- KEYS[4]   timeouts          zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5]   never             string a key that never exists (include_semaphore)
-- ARGV[1]   owner             text   "<client uuid>:<number>:<permits>"
-- ARGV[2]   lease             ms     the lease of the permits from now on
-- ARGV[3]   timeout           ms     how long the owner counts as alive without a heartbeat; 0 does not join the queue
-- ARGV[4]   total             count  the required total of permits; 0 accepts any
-- ARGV[5]   channel           text   what the channels of clients begin with (include_semaphore_queue)
-- ARGV[6]   redisson_channel  text   the channel of Redisson's clients
-- ARGV[7]   publish           text   the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[8]   id                text   the id of a permit to acquire
-- ARGV[i+8] other             text   the ids of the other permits
--
-- Returns "0" if the owner now holds all the permits.
-- Returns {n, 0}: other owners hold the permits or are before this one. The next lease expires in n ms (-1
-- never). The owner is in the queue unless timeout is 0.
-- Returns -4: a key has the wrong type; nothing was changed.
-- Returns an error PERMITS <n> if the semaphore has n permits, but total is different, or the owner needs more
-- than n. (If n is 0 or less and total is 0, the owner waits instead.)
-- Returns an error PERMITS absent if there is no semaphore, and total is 0, so that the script cannot create it.
-- After either error, nothing was changed.
--
-- Safe to repeat: permits that the owner holds count as acquired, and their lease is extended. An owner in the
-- queue keeps its position, and the call counts as a heartbeat.
local free, leases, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, timeout, total = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, redisson_channel, publish, id = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local ids = {id}
for i = 1, #ARGV - 8 do
  local other = ARGV[i + 8]
  ids[i + 1] = other
end

-- Fast path for the usual case: permits are free, and the queue is empty. Defining all functions takes longer than such
-- a call. A command that fails here is repeated by acquire_permits, which returns the error.
local n, text, held = #ids, redis.pcall('GET', free), redis.pcall('ZCARD', leases)
local value = type(held) == 'number' and tonumber(text) -- mutant: never: speed
-- mutant: never, operand 6, operand 7, border: speed
if value and value >= n and (total == 0 or value + held == total) and redis.pcall('LLEN', queue) == 0 then
  -- mutant: always, operand 1, border: speed
  local first = held > 0 and redis.call('ZRANGE', leases, '0', '0')[1] -- its size shows whether the zset is one of the application
  local is_held = false
  if first then -- mutant: always: speed
    for _, at in ipairs(redis.call('ZMSCORE', leases, unpack(ids))) do is_held = is_held or at end -- mutant: operand 1: ZADD then finds the first
  end
  -- mutant: never, operand 4: speed
  if not is_held and (not first or #first == 16) then
    local time, expiry = redis.call('TIME'), first and -1 or redis.call('PTTL', free) -- a semaphore that Redisson created may have an expiry
    -- mutant: never: speed
    if type(redis.pcall('INCRBY', free, '-' .. n)) == 'number' then
      local score, denied = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + lease), false
      for _, each in ipairs(ids) do
        -- mutant: always, removed 2: speed
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
return later().acquire_permits(free, leases, queue, timeouts, owner, ids, lease, timeout, total, channel, redisson_channel, publish)
