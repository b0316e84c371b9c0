-- reentrant_force: frees the lock, whichever owner holds it.
-- include: plain
--
-- KEYS[1] lock     hash   owner -> hold count, and the line (include_line)
-- ARGV[1] channel  text   where waiters listen
-- ARGV[2] publish  text   the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when an owner held it, 0 when none did.
-- Returns -4 when the key holds something else; nothing was done.
local lock = KEYS[1]
local channel, publish = ARGV[1], ARGV[2]

local fields, answer = plain(lock, false)
if not fields then return answer end
if redis.call('DEL', lock) == 0 then return 0 end
redis.pcall(publish, channel, '0')
return 1
