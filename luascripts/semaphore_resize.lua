-- semaphore_resize: sets how many permits there are in all.
-- include: time, semaphore, semaphore_queue
--
-- KEYS[1] free    string how many permits are free
-- KEYS[2] leases  zset   permit -> ms until which it is held
-- KEYS[3] queue   list   waiting owners, in the order of their arrival
-- KEYS[4] alive   zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5] never   string never there (include_semaphore)
-- ARGV[1] total   count  how many permits there must be
-- ARGV[2] channel text   the channel of a client begins with it (include_semaphore)
-- ARGV[3] change  text   where Redisson's clients listen
-- ARGV[4] publish text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[5] before  ms     the server's time before which the script does something; 0 only asks for that time
--
-- Returns 1 when there are so many. With fewer than are held, the number of free ones is negative until enough
-- are given back. An expiry stays.
-- Returns -4 when a key holds something else; nothing was done.
-- Returns the server's time in ms when before has come; nothing was done.
--
-- The waiters that can take their permits then are told, and so are clients whose waiters may have to give up. Safe to repeat. A copy
-- that comes late does nothing, so it undoes no newer call.
local free, leases, queue, alive, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local total, channel, change, publish, before = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local now = clock()
if now >= before then return now end
local value, held, answer = stock(free, leases)
if not held then return answer end
redis.call('ZREM', leases, '') -- no such member: a replica, whose data may be old, refuses it
local left = total - held
if not value then
  make(free, leases, left)
elseif value ~= left then -- mutant: always: speed
  redis.call('SET', free, string.format('%.0f', left), 'KEEPTTL')
end
left = left + reclaim(free, leases, now)
local living = queued(queue, alive, now, true)
spread(channel, publish, living, left, 0)
redis.pcall(publish, change, string.format('%.0f', math.max(left, 1))) -- without a zero: our clients look, too
return 1
