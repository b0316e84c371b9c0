-- waitgroup_status: counts the workers of a wait group.
-- include: time, waitgroup
--
-- KEYS[1] workers zset  worker -> score (include_waitgroup)
-- ARGV[1] ttl     ms    how long the wait group stays in Redis if it is not used
--
-- Returns {round, done, alive, next, lost, ...}: the time in µs at which the wait group began, 0 if there is none; the
-- number of workers that are done; the number that are alive; the time in ms until the next lease expires, if it is not
-- renewed (-1 none); the number that are lost; and the owners of up to 100 lost ones.
-- Returns -4 if the key has the wrong type.
--
-- Changes only the expiry, so that a wait group stays while a caller waits for workers that are still to be added.
local workers, ttl = KEYS[1], tonumber(ARGV[1])

local now = clock()
local round, alive, answer = read_worker(workers, 'round', now)
if answer then return answer end
redis.call('ZREM', workers, '') -- deletes nothing; a replica, whose data may be old, rejects it
-- mutant: operand 1: speed
if round and redis.call('PTTL', workers) < ttl / 2 then redis.call('PEXPIRE', workers, ttl) end
local text = string.format('%.0f', now)
local first = redis.call('ZRANGEBYSCORE', workers, '(' .. text, '(9000000000000000', 'WITHSCORES', 'LIMIT', 0, 1)
local reply = {
  round and -round or 0,
  redis.call('ZCOUNT', workers, '9000000000000000', '+inf'),
  count_alive(workers, now),
  first[2] and math.ceil(tonumber(first[2]) - now) or -1,
  redis.call('ZCOUNT', workers, '1', text),
}
for _, owner in ipairs(redis.call('ZRANGEBYSCORE', workers, '1', text, 'LIMIT', 0, 100)) do
  reply[#reply + 1] = owner
end
return reply
