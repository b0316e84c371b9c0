-- crew_join: an owner becomes a member of a crew.
-- include: time, crew
--
-- KEYS[1] members zset  member -> score (include_crew)
-- ARGV[1] owner   text  "<client uuid>:<number>"
-- ARGV[2] lease   ms    what the member lives on without a renewal
-- ARGV[3] stay    ms    how long the crew stays in Redis at least, when nothing happens
-- ARGV[4] ended   ms    the server's time at which the lease ended that an earlier copy took; 0 knows of none
--
-- Returns "0" when the owner is a member.
-- Returns the server's time in ms at which the lease of the owner ended, when it ended and ended is another time; nothing was done.
-- Returns -2: the owner was a member before, and is done, lost by its own word, or dismissed; nothing was done.
-- Returns -4: the key holds something else.
--
-- Safe to repeat. A copy that comes when the lease has ended changes nothing. Only a call that was told of that end takes up the lease again: it
-- still waits, so no caller had the member.
local members = KEYS[1]
local owner, lease, stay, ended = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local now, time = clock()
local score, alive, answer = member_of(members, owner, now)
if answer then return answer end
if score and is_mark(score) then
  redis.call('ZREM', members, '') -- no such member: a replica, whose data may be old, refuses it
  return -2
end
if score and not alive and score ~= ended then return score end
local denied = put(members, owner, score, math.max(score or 0, now + lease), math.max(stay, lease * 4)) -- it outlives the lease: a lost member is named
if denied then return denied end
if not redis.call('ZSCORE', members, 'round') then
  redis.call('ZADD', members, string.format('%.0f', -(time[1] * 1000000 + time[2])), 'round')
end
return '0'
