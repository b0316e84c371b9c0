-- waitgroup_leave: ends the work of an owner.
-- include: time, waitgroup
--
-- KEYS[1] workers zset  worker -> score (include_waitgroup)
-- ARGV[1] owner   text  "<client uuid>:<number>"
-- ARGV[2] leave   count 0 leaves; 1 only checks
-- ARGV[3] mark    count the mark to leave: 9e15 + 1 done, 1 lost, 0 never started
-- ARGV[4] ttl     ms    how long the wait group stays in Redis if it is not used
-- ARGV[5] channel text  the channel of the waiters
-- ARGV[6] publish text  the command that notifies them: PUBLISH or SPUBLISH
--
-- Returns 1 if the owner was a living worker, or an earlier copy of this call left the same mark.
-- Returns -2 if it was not: it was lost, and stays lost, or it never joined. With mark 0, the owner gets the mark anyway,
-- so that a delayed join cannot make it a worker. A worker whose lease has expired gets the mark 1.
-- Returns -4 if the key has the wrong type.
--
-- Waiters are notified if no living worker remains, or the worker was lost.
--
-- Safe to repeat: a mark does not change.
local workers = KEYS[1]
local owner, leave, mark, ttl, channel, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]

local now = clock()
local score, alive, answer = read_worker(workers, owner, now)
if answer then return answer end
redis.call('ZREM', workers, '') -- deletes nothing; a replica rejects it, and then full memory does not stop the rest
if leave == '1' then return alive and 1 or -2 end -- mutant: operand 3: a reply has true as 1
-- mutant: operand 5: a reply has true as 1
if score and is_mark(score) then return score == mark and 1 or -2 end
if score and not alive then mark = 1 end
if not score and mark > 0 then return -2 end
local others = count_alive(workers, now) - 1 -- without the owner, if it is alive
local denied = set_score(workers, owner, score, mark, ttl)
if denied then return denied end
if not alive then return -2 end
if mark == 1 or others == 0 then redis.pcall(publish, channel, '0') end
return 1
