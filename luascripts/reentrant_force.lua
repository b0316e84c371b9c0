-- reentrant_force: force-unlocks a plain lock.
-- include: plain
--
-- KEYS[1] lock     hash   owner -> hold count, and the queue (include_queue)
-- ARGV[1] channel  text   the channel of the waiters
-- ARGV[2] publish  text   the command that notifies them: PUBLISH or SPUBLISH
--
-- Returns 1 if an owner held the lock, 0 if it was free.
-- Returns -4 if the key is not a plain lock; nothing was changed.
--
-- Sent only once, because a second copy would remove an owner that acquired the lock in between.
local lock = KEYS[1]
local channel, publish = ARGV[1], ARGV[2]

local fields, answer = read_plain(lock, false)
if not fields then return answer end
if redis.call('DEL', lock) == 0 then return 0 end
redis.pcall(publish, channel, '0')
return 1
