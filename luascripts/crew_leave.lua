-- crew_leave: a member leaves its crew.
-- include: time, crew
--
-- KEYS[1] members zset  member -> score (include_crew)
-- ARGV[1] owner   text  "<client uuid>:<number>"
-- ARGV[2] leave   count 1 only asks; 0 leaves
-- ARGV[3] as      count the mark that it leaves: 9e15 + 1 done, 1 lost, 0 never began
-- ARGV[4] stay    ms    how long the crew stays in Redis when nothing happens
-- ARGV[5] channel text  where waiters listen
-- ARGV[6] publish text  the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when the owner was a living member; also when an earlier copy of this call left the same mark.
-- Returns -2 when it was not: it was lost, and stays so, or it never joined. What never began leaves a mark all the same, and so does a member
-- whose lease has ended: it is lost for good.
-- Returns -4 when the key holds something else.
--
-- The waiters are told when nobody is left, or a member was lost. Safe to repeat.
local members = KEYS[1]
local owner, leave, as, stay, channel, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]

local now = clock()
local score, alive, answer = member_of(members, owner, now)
if answer then return answer end
redis.call('ZREM', members, '') -- no such member: a first write that memory limits let through, and a replica refuses
if leave == '1' then return alive and 1 or -2 end -- mutant: operand 3: a reply has true as 1
-- mutant: operand 5: a reply has true as 1
if score and is_mark(score) then return score == as and 1 or -2 end
if score and not alive then as = 1 end
if not score and as > 0 then return -2 end
local others = at_work(members, now) - 1 -- without the owner, if it is alive
local denied = put(members, owner, score, as, stay)
if denied then return denied end
if not alive then return -2 end
if as == 1 or others == 0 then redis.pcall(publish, channel, '0') end
return 1
