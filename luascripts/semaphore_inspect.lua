-- semaphore_inspect: reads a semaphore, or a part of one.
-- include: time, semaphore
--
-- KEYS[1] free    string how many permits are free
-- KEYS[2] leases  zset   permit -> ms until which it is held
-- KEYS[3] queue   list   waiting owners, in the order of their arrival
-- KEYS[4] alive   zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5] never   string never there (include_semaphore)
-- ARGV[1] from    count  how many permits to leave out, in the order of their leases
-- ARGV[2] after   count  how many waiters to leave out
--
-- Returns {free, held, permits, waiters}: the number of free ones as it stands, or "" when there is no semaphore;
-- how many are held; of those at most a thousand, as a list of ids and what is left of their leases in ms (-1 no
-- end, 0 over); and at most a thousand waiters, as a list of owners and the ms after which they count as dead.
-- Returns -4 when a key holds something else.
local free, leases, queue, alive, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local from, after = tonumber(ARGV[1]), tonumber(ARGV[2])

local value, held, answer = stock(free, leases)
if not held then return answer end
local now = clock()
local permits = redis.call('ZRANGE', leases, from, from + 999, 'WITHSCORES')
for i = 2, #permits, 2 do
  local left = tonumber(permits[i]) - now
  -- mutant: border: no lease is that long
  permits[i] = left > 1000000000000 and -1 or math.max(math.ceil(left), 0)
end
local waiters, members = {}, redis.call('LRANGE', queue, after, after + 999)
local deadlines = #members > 0 and redis.call('ZMSCORE', alive, unpack(members))
for i, member in ipairs(members) do
  waiters[#waiters + 1] = member
  waiters[#waiters + 1] = math.max((tonumber(deadlines[i]) or now) - now, 0)
end
return {value and string.format('%.0f', value) or '', held, permits, waiters}
