-- semaphore_inspect: reads a semaphore, or a part of a large one.
-- include: time, semaphore
--
-- KEYS[1] free      string the number of free permits
-- KEYS[2] leases    zset   held permit -> ms at which its lease expires
-- KEYS[3] queue     list   waiting owners, in the order of their arrival
-- KEYS[4] timeouts  zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5] never     string a key that never exists (include_semaphore)
-- ARGV[1] skip_permits  count  how many held permits to skip, in the order of their leases
-- ARGV[2] skip_waiters  count  how many waiters to skip
--
-- Returns {free, held, permits, waiters}: the number of free permits as stored, or "" if there is no semaphore;
-- the number of held ones; up to 1000 of these, each with its id and its remaining lease in ms (-1 no expiry, 0
-- expired); and up to 1000 waiters, each with the ms after which it counts as dead.
-- Returns -4 if a key has the wrong type.
--
-- Changes nothing.
local free, leases, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local skip_permits, skip_waiters = tonumber(ARGV[1]), tonumber(ARGV[2])

local value, held, answer = read_permits(free, leases)
if not held then return answer end
local now = clock()
local permits = redis.call('ZRANGE', leases, skip_permits, skip_permits + 999, 'WITHSCORES')
for i = 2, #permits, 2 do
  local left = tonumber(permits[i]) - now
  -- mutant: border: no lease is that long
  permits[i] = left > 1000000000000 and -1 or math.max(math.ceil(left), 0)
end
local waiters, members = {}, redis.call('LRANGE', queue, skip_waiters, skip_waiters + 999)
local deadlines = #members > 0 and redis.call('ZMSCORE', timeouts, unpack(members))
for i, member in ipairs(members) do
  waiters[#waiters + 1] = member
  waiters[#waiters + 1] = math.max((tonumber(deadlines[i]) or now) - now, 0)
end
return {value and string.format('%.0f', value) or '', held, permits, waiters}
