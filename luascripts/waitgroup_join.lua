-- waitgroup_join: makes an owner a worker of a wait group.
-- include: time, waitgroup
--
-- KEYS[1] workers zset  worker -> score (include_waitgroup)
-- ARGV[1] owner   text  "<client uuid>:<number>"
-- ARGV[2] lease   ms    the lease of the worker from now on
-- ARGV[3] ttl     ms    how long the wait group stays in Redis if it is not used, at least
-- ARGV[4] ended   ms    the time of expiry that an earlier call returned; 0 for the first call
--
-- Returns "0" if the owner is a worker now.
-- Returns the server's time in ms at which the lease of the owner expired, if it has expired, and `ended` is not that
-- time; nothing was changed.
-- Returns -2: the owner was a worker before, and is done, reported itself lost, or was dismissed; nothing was changed.
-- Returns -4: the key has the wrong type.
--
-- Safe to repeat: a delayed duplicate that arrives after the lease has expired changes nothing. Only a call that passes
-- the time of expiry resumes the lease. Its caller is still waiting, so the worker has not been used.
local workers = KEYS[1]
local owner, lease, ttl, ended = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local now, time = clock()
local score, alive, answer = read_worker(workers, owner, now)
if answer then return answer end
if score and is_mark(score) then
  redis.call('ZREM', workers, '') -- deletes nothing; a replica, whose data may be old, rejects it
  return -2
end
if score and not alive and score ~= ended then return score end
local denied = set_score(workers, owner, score, math.max(score or 0, now + lease), math.max(ttl, lease * 4)) -- longer than the lease, so that waiters see a lost worker
if denied then return denied end
if not redis.call('ZSCORE', workers, 'round') then
  redis.call('ZADD', workers, string.format('%.0f', -(time[1] * 1000000 + time[2])), 'round')
end
return '0'
