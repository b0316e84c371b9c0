-- crew_look: tells how a crew stands.
-- include: time, crew
--
-- KEYS[1] members zset  member -> score (include_crew)
--
-- Returns {round, done, alive, next, lost, ...}: the time in µs at which the crew began, 0 if there is none; how many members
-- are done, and how many alive; after how many ms the next lease ends, if nobody renews it (-1 none); and how many are
-- lost, with the owners of a hundred of them.
-- Returns -4 when the key holds something else.
local members = KEYS[1]

local now = clock()
local round, alive, answer = member_of(members, 'round', now)
if answer then return answer end
redis.call('ZREM', members, '') -- no such member: a replica, whose data may be old, refuses it
local text = string.format('%.0f', now)
local first = redis.call('ZRANGEBYSCORE', members, '(' .. text, '(9000000000000000', 'WITHSCORES', 'LIMIT', 0, 1)
local reply = {
  round and -round or 0,
  redis.call('ZCOUNT', members, '9000000000000000', '+inf'),
  at_work(members, now),
  first[2] and math.ceil(tonumber(first[2]) - now) or -1,
  redis.call('ZCOUNT', members, '1', text),
}
for _, owner in ipairs(redis.call('ZRANGEBYSCORE', members, '1', text, 'LIMIT', 0, 100)) do
  reply[#reply + 1] = owner
end
return reply
