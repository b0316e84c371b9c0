-- crew_join: an owner becomes a member of a crew.
-- include: time, crew
--
-- KEYS[1] members zset  member -> score (include_crew)
-- ARGV[1] owner   text  "<client uuid>:<number>"
-- ARGV[2] lease   ms    what the member lives on without a renewal
-- ARGV[3] stay    ms    how long the crew stays in Redis when nothing happens
--
-- Returns "0" when the owner is a member.
-- Returns -4: the key holds something else, or the owner was a member before and is over.
--
-- Safe to repeat.
local members = KEYS[1]
local owner, lease, stay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local now, time = clock()
local score, alive, answer = member_of(members, owner, now)
if answer then return answer end
if score and (score < 2 or score >= 9e15) then return -4 end
local denied = put(members, owner, math.max(score or 0, now + lease), math.max(stay, lease))
if denied then return denied end
if not redis.call('ZSCORE', members, 'round') then
  redis.call('ZADD', members, string.format('%.0f', -(time[1] * 1000000 + time[2])), 'round')
end
return '0'
