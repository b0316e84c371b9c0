-- fair_force: force-unlocks a fair lock, and notifies the first owner in the queue.
-- include: time, plain, fair
--
-- KEYS[1] lock      hash  owner -> hold count
-- KEYS[2] queue     list  waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string a key that never exists (include_fair)
-- ARGV[1] channel   text  what the channels of owners begin with (include_fair)
-- ARGV[2] publish   text  the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[3] dead      count 1 if it only removes dead owners; missing otherwise
--
-- Returns {1, more} if an owner held the lock, {0, more} if it was free. If 100 dead owners were removed
-- from the front of the queue and there are more, more is 1: call the script again, with dead = 1.
-- Returns {-4, 0} if the key is not a fair lock; nothing was changed.
--
-- It removes dead owners from the front of the queue even if the lock was free. Living owners keep their
-- positions.
--
-- Sent only once, because a second copy would remove an owner that acquired the lock in between. With
-- dead = 1 it is safe to repeat.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, publish, dead = ARGV[1], ARGV[2], ARGV[3]

local now = clock()
local fields, answer = read_plain(lock, true)
if not fields then
  if answer == -4 then return {-4, 0} end
  return answer
end
redis.call('HDEL', lock, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
local first, more = first_alive(queue, timeouts, now)
local removed = 0
if not dead then removed = redis.call('DEL', lock) end
if first then notify_owner(channel, publish, first) end
return {removed, more and 1 or 0} -- mutant: operand 3: a reply has true as 1
