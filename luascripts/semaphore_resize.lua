-- semaphore_resize: sets the total number of permits.
-- include: time, semaphore, semaphore_queue
--
-- KEYS[1] free              string the number of free permits
-- KEYS[2] leases            zset   held permit -> ms at which its lease expires
-- KEYS[3] queue             list   waiting owners, in the order of their arrival
-- KEYS[4] timeouts          zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[5] never             string a key that never exists (include_semaphore)
-- ARGV[1] total             count  the new total of permits
-- ARGV[2] channel           text   what the channels of clients begin with (include_semaphore_queue)
-- ARGV[3] redisson_channel  text   the channel of Redisson's clients
-- ARGV[4] publish           text   the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[5] before            ms     the server's time at which this call becomes invalid; 0 only reads the server's time
--
-- Returns 1 if the semaphore now has that total. If more permits are held than that, the number of free ones is
-- negative until enough are released. An expiry stays as it is.
-- Returns -4 if a key has the wrong type; nothing was changed.
-- Returns the server's time in ms if the time `before` has come; nothing was changed.
--
-- Waiters that can acquire their permits now are notified, and so are clients whose waiters may have to give up.
--
-- Safe to repeat: a delayed duplicate arrives after `before`, so it cannot undo a newer call.
local free, leases, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local total, channel, redisson_channel, publish, before = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local now = clock()
if now >= before then return now end
local value, held, answer = read_permits(free, leases)
if not held then return answer end
redis.call('ZREM', leases, '') -- deletes nothing; a replica, whose data may be old, rejects it
local new_free = total - held
if not value then
  create(free, leases, new_free)
elseif value ~= new_free then -- mutant: always: speed
  redis.call('SET', free, string.format('%.0f', new_free), 'KEEPTTL')
end
new_free = new_free + reclaim_expired(free, leases, now)
local waiters = living_waiters(queue, timeouts, now, true)
notify_waiters(channel, publish, waiters, new_free, 0)
redis.pcall(publish, redisson_channel, string.format('%.0f', math.max(new_free, 1))) -- without the zero of notify_redisson, so clients of leasehold check, too
return 1
