-- include_waitgroup: a wait group, whose workers have leases. It has no keys of its own.
--
-- A wait group is one zset, worker -> score. The score of a living worker is the server's time in ms at which its
-- lease expires; once that has passed, the worker is lost. Other scores are marks: 9e15 + 1 is done; 1 is lost, as
-- the worker itself reported; 0 never started, or was dismissed. A worker that has ended stays in the zset, so that
-- a delayed duplicate of a command does not restore it. The member "round" has minus the time in µs at which the
-- wait group began. The time distinguishes it from an earlier wait group of the same name.

-- read_worker returns the score of a worker, or nil, and whether the worker is alive. If the key has the wrong type,
-- or a command is denied, it returns nil, false, and the reply for the caller.
local function read_worker(workers, owner, now)
  local score = redis.pcall('ZSCORE', workers, owner)
  if type(score) == 'table' then
    return nil, false, string.find(score.err, 'WRONGTYPE', 1, true) and -4 or score
  end
  score = tonumber(score)
  return score, score ~= nil and score > now and score < 9e15 -- mutant: border 2: no score is 9e15
end

-- is_mark reports whether a score is a mark, not a time.
local function is_mark(score)
  return score < 2 or score >= 9e15 -- mutant: border 2: no score is 9e15
end

-- set_score sets the score of a worker, which was `before`, or nil if it had none. ttl is for how many ms the wait
-- group stays in Redis; it stays for half of that at least. If the server denies one of the commands, set_score undoes the others and returns the error.
local function set_score(workers, owner, before, score, ttl)
  local reply = redis.pcall('ZADD', workers, string.format('%.0f', score), owner)
  if type(reply) == 'table' then return reply end
  local left = redis.pcall('PTTL', workers)
  local denied = left
  if type(left) == 'number' then denied = left < ttl / 2 and redis.pcall('PEXPIRE', workers, ttl) end
  if type(denied) == 'table' then
    if before then
      redis.call('ZADD', workers, string.format('%.0f', before), owner)
    else
      redis.call('ZREM', workers, owner)
    end
    return denied
  end
end

-- count_alive returns the number of living workers.
local function count_alive(workers, now)
  return redis.call('ZCOUNT', workers, '(' .. string.format('%.0f', now), '(9000000000000000')
end
