-- fair_inspect: reads a fair lock and a part of its queue in one consistent snapshot.
-- include: time, plain
--
-- KEYS[1] lock      hash  owner -> hold count
-- KEYS[2] queue     list  waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string a key that never exists (include_fair)
-- ARGV[1] after     text  the last owner of the part before; "" for the first part
-- ARGV[2] offset    count the number of owners before this part; used if `after` has left the queue
--
-- Returns {lease, {field, value, …}, {owner, timeout, …}}: the remaining lease in ms (-1 no expiry, -2 no
-- key); all fields of the hash; and up to 100 waiting owners in order, with the ms after which each counts
-- as dead without a heartbeat (0: dead, but still in the queue).
-- Returns -4 if the key is not a fair lock.
--
-- Changes nothing.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local after, offset = ARGV[1], tonumber(ARGV[2])

local fields, answer = read_plain(lock)
if not fields then return answer end
local from = after ~= '' and redis.call('LPOS', queue, after) -- mutant: always, operand 1: no owner is empty
from = from and from + 1 or offset
local members = redis.call('LRANGE', queue, from, from + 99)
local now, waiters = clock(), {}
if #members > 0 then
  local deadlines = redis.call('ZMSCORE', timeouts, unpack(members))
  for i, owner in ipairs(members) do
    waiters[2 * i - 1] = owner
    waiters[2 * i] = math.min(math.max((deadlines[i] or 0) - now, 0), 1e15) -- a client of Redisson that waits forever has a deadline that no reply can express
  end
end
return {redis.call('PTTL', lock), fields, waiters}
