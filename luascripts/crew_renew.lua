-- crew_renew: lengthens the leases of many members.
-- include: time, crew
--
-- KEYS[i]   members zset  member -> score (include_crew); all in one slot
-- ARGV[1]   lease   ms    what each member lives on from now
-- ARGV[i+1] owner   text  the member of each key
--
-- Returns a list: how many keys there are, and for each that was not renewed its place i and -2 when the owner is no living
-- member, -4 when the key holds something else.
--
-- It never shortens a lease, and a member whose lease has run out stays lost. The crew stays in Redis for a day or longer. Safe
-- to repeat.
local lease = tonumber(ARGV[1])
local stay = math.max(lease * 4, 86400000) -- a day, as CrewStay says: those who come after the last renewal find the crew
local now = clock()
local replies = {#KEYS}
for i, members in ipairs(KEYS) do
  local owner = ARGV[i + 1]
  local score, alive, answer = member_of(members, owner, now)
  if answer and answer ~= -4 then return answer end -- denied, or busy: an error is not an answer about the members
  if not answer then redis.call('ZREM', members, '') end -- no such member: a first write that memory limits let through, and a replica refuses
  if alive then
    if score < now + lease then
      redis.call('ZADD', members, string.format('%.0f', now + lease), owner)
      if redis.call('PTTL', members) < stay / 2 then redis.call('PEXPIRE', members, string.format('%.0f', stay)) end
    end
  else
    replies[#replies + 1] = i
    replies[#replies + 1] = answer or -2
  end
end
return replies
