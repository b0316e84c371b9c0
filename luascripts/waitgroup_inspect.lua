-- waitgroup_inspect: reads the workers of a wait group, or a part of them.
-- include: time, waitgroup
--
-- KEYS[1] workers zset  worker -> score (include_waitgroup)
-- ARGV[1] skip    count how many entries to skip, in the order of their scores
--
-- Returns a list. Its first number is how many entries the script read, up to 1000, including those that are not
-- workers. Then each worker follows with its remaining lease in ms; 0 if it is lost, -1 if it is done.
-- Returns -4 if the key has the wrong type.
--
-- Changes nothing.
local workers = KEYS[1]
local skip = tonumber(ARGV[1])

local now = clock()
local score, alive, answer = read_worker(workers, 'round', now)
if answer then return answer end
local all = redis.call('ZRANGE', workers, skip, skip + 999, 'WITHSCORES')
local reply = {#all / 2}
for i = 1, #all, 2 do
  local at = tonumber(all[i + 1])
  if at > 0 then
    reply[#reply + 1] = all[i]
    -- mutant: border: no score is 9e15
    reply[#reply + 1] = at >= 9e15 and -1 or math.max(math.ceil(at - now), 0)
  end
end
return reply
