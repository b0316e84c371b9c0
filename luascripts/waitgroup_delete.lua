-- waitgroup_delete: deletes a wait group.
-- include: waitgroup
--
-- KEYS[1] workers zset  worker -> score (include_waitgroup)
-- ARGV[1] round   count when the wait group to delete began, as waitgroup_status returns it
-- ARGV[2] channel text  the channel of the waiters
-- ARGV[3] publish text  the command that notifies them: PUBLISH or SPUBLISH
--
-- Returns 1 if that wait group no longer exists.
-- Returns -4 if the key has the wrong type.
--
-- Its workers detect this at their next renewal.
--
-- Safe to repeat: a wait group that began later is not deleted.
local workers = KEYS[1]
local round, channel, publish = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local score, alive, answer = read_worker(workers, 'round', 0)
if answer then return answer end
redis.call('ZREM', workers, '') -- deletes nothing; a replica, whose data may be old, rejects it
if score and -score == round then
  redis.call('DEL', workers)
  redis.pcall(publish, channel, '1')
end
return 1
