-- waitgroup_dismiss: dismisses lost workers, so that waiters no longer see them.
-- include: time, waitgroup
--
-- KEYS[1]   workers zset  worker -> score (include_waitgroup)
-- ARGV[1]   ttl     ms    how long the wait group stays in Redis if it is not used
-- ARGV[2]   channel text  the channel of the waiters
-- ARGV[3]   publish text  the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[i+3] owner   text  a worker
--
-- Returns how many of these workers are dismissed, now or by an earlier call: 0 or more.
-- Returns -4 if the key has the wrong type.
--
-- Safe to repeat: a worker that is alive or done is not dismissed.
local workers = KEYS[1]
local ttl, channel, publish = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local now, count, changed = clock(), 0, false
for i = 1, #ARGV - 3 do
  local owner = ARGV[i + 3]
  local score, alive, answer = read_worker(workers, owner, now)
  if answer then return answer end
  redis.call('ZREM', workers, '') -- deletes nothing; a replica rejects it, and then full memory does not stop the rest
  if score and score >= 1 and score <= now then
    local denied = set_score(workers, owner, score, 0, ttl)
    if denied then return denied end
    changed = true
    score = 0
  end
  if score == 0 then count = count + 1 end
end
if changed then redis.pcall(publish, channel, '0') end
return count
