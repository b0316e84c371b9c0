-- crew_delete: deletes a crew.
-- include: crew
--
-- KEYS[1] members zset  member -> score (include_crew)
-- ARGV[1] round   count the round to delete (crew_look)
-- ARGV[2] channel text  where waiters listen
-- ARGV[3] publish text  the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when that round is gone.
-- Returns -4 when the key holds something else.
--
-- Its members learn of it at their next renewals. Safe to repeat: a later round stays.
local members = KEYS[1]
local round, channel, publish = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local is, alive, answer = member_of(members, 'round', 0)
if answer then return answer end
redis.call('ZREM', members, '') -- no such member: a replica, whose data may be old, refuses it
if is and -is == round then
  redis.call('DEL', members)
  redis.pcall(publish, channel, '1')
end
return 1
