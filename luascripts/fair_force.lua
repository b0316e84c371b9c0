-- fair_force: frees the lock, whichever owner holds it, and tells the first of the queue.
-- include: time, plain, fair
--
-- KEYS[1] lock      hash  owner -> hold count
-- KEYS[2] queue     list  waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
-- ARGV[1] channel   text  the channel of an owner begins with it (include_fair)
-- ARGV[2] publish   text  the command that reaches it: PUBLISH or SPUBLISH
--
-- Returns {1, more} when an owner held it, {0, more} when none did.
-- Returns {-4, 0} when the key holds something else; nothing was done.
--
-- Drops the dead from the head of the queue, also when the lock was free; the
-- living keep their places. If there are more than a hundred dead before the first living
-- owner, more is 1: then the same call again goes on looking.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, publish = ARGV[1], ARGV[2]

local fields, answer = read_plain(lock, true)
if not fields then
  if answer == -4 then return {-4, 0} end
  return answer
end
redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let through
local first, more = head(queue, timeouts, clock())
local freed = redis.call('DEL', lock)
if first then tell(channel, publish, first) end
return {freed, more and 1 or 0} -- mutant: operand 3: a reply has true as 1
