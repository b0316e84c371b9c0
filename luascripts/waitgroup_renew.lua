-- waitgroup_renew: extends the leases of many workers.
-- include: time, waitgroup
--
-- KEYS[i]   workers zset  worker -> score (include_waitgroup); all keys in one cluster slot
-- ARGV[1]   lease   ms    the lease of each worker from now on
-- ARGV[i+1] owner   text  the worker of each key
--
-- Returns a list: the number of keys, and two numbers for each that was not renewed: its index i, and -2 if the owner is
-- not a living worker, or -4 if the key has the wrong type.
--
-- The wait group stays in Redis for at least a day.
--
-- Safe to repeat: it never shortens a lease, and a worker whose lease has expired stays lost.
local lease = tonumber(ARGV[1])
local ttl = math.max(lease * 4, 172800000) -- two days, as WaitGroupStay: callers that come within a day still find the wait group
local now = clock()
local replies = {#KEYS}
for i, workers in ipairs(KEYS) do
  local owner = ARGV[i + 1]
  local score, alive, answer = read_worker(workers, owner, now)
  if answer and answer ~= -4 then return answer end -- a denied command or a busy server says nothing about the workers
  if not answer then redis.call('ZREM', workers, '') end -- deletes nothing; a replica rejects it, and then full memory does not stop the rest
  if alive then
    if score < now + lease then
      redis.call('ZADD', workers, string.format('%.0f', now + lease), owner)
      if redis.call('PTTL', workers) < ttl / 2 then redis.call('PEXPIRE', workers, string.format('%.0f', ttl)) end
    end
  else
    replies[#replies + 1] = i
    replies[#replies + 1] = answer or -2
  end
end
return replies
