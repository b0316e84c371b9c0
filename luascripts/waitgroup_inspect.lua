-- waitgroup_inspect: reads the workers of a wait group, or a part of them.
-- include: time, waitgroup
--
-- KEYS[1] workers zset  worker -> score (include_waitgroup)
-- ARGV[1] skip    count how many workers to skip, in the order of their scores
--
-- Returns a list of up to 1000 workers, each with its remaining lease in ms; 0 if it is lost, -1 if it is done. Workers
-- that were dismissed or never started are omitted.
-- Returns -4 if the key has the wrong type.
--
-- Changes nothing.
local workers = KEYS[1]
local skip = ARGV[1]

local now = clock()
local score, alive, answer = read_worker(workers, 'round', now)
if answer then return answer end
local all = redis.call('ZRANGEBYSCORE', workers, '(0', '+inf', 'WITHSCORES', 'LIMIT', skip, 1000)
for i = 2, #all, 2 do
  local at = tonumber(all[i])
  -- mutant: border: no score is 9e15
  all[i] = at >= 9e15 and -1 or math.max(math.ceil(at - now), 0)
end
return all
