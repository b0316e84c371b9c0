-- crew_dismiss: takes lost members out of a crew.
-- include: time, crew
--
-- KEYS[1]   members zset  member -> score (include_crew)
-- ARGV[1]   stay    ms    how long the crew stays in Redis when nothing happens
-- ARGV[2]   channel text  where waiters listen
-- ARGV[3]   publish text  the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[i+3] owner   text  a member
--
-- Returns how many of them are dismissed, now or by an earlier call: 0 or more.
-- Returns -4 when the key holds something else.
--
-- Safe to repeat.
local members = KEYS[1]
local stay, channel, publish = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local now, count, told = clock(), 0, false
for i = 1, #ARGV - 3 do
  local owner = ARGV[i + 3]
  local score, alive, answer = member_of(members, owner, now)
  if answer then return answer end
  redis.call('ZREM', members, '') -- no such member: a first write that memory limits let through, and a replica refuses
  if score and score >= 1 and score <= now then
    local denied = put(members, owner, score, 0, stay)
    if denied then return denied end
    told = true
    score = 0
  end
  if score == 0 then count = count + 1 end
end
if told then redis.pcall(publish, channel, '0') end
return count
