-- crew_inspect: reads the members of a crew, or some of them.
-- include: time, crew
--
-- KEYS[1] members zset  member -> score (include_crew)
-- ARGV[1] from    count how many to leave out, in the order of their scores
--
-- Returns a list of at most a thousand members, each with the ms that are left of its lease, 0 when it is lost, and -1 when
-- it is done. Before them stands how many entries the script has looked at, with those that are no members.
-- Returns -4 when the key holds something else.
local members = KEYS[1]
local from = tonumber(ARGV[1])

local now = clock()
local score, alive, answer = member_of(members, 'round', now)
if answer then return answer end
local all = redis.call('ZRANGE', members, from, from + 999, 'WITHSCORES')
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
