-- fair_inspect: one consistent snapshot of the lock and of a part of its queue.
-- include: time, plain
--
-- KEYS[1] lock      hash  owner -> hold count
-- KEYS[2] queue     list  waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
-- ARGV[1] after     text  the owner after which the part begins; "" for the head of the queue
-- ARGV[2] seen      count how many owners were before the part; it begins there if `after` has left
--
-- Returns {lease, {field, value, …}, {owner, patience, …}}: what is left of the
-- lease in ms (-1 no expiry, -2 no key), the hash as it is, and up to 100 of the queue
-- in order, with the ms for which each owner counts as alive without a heartbeat
-- (0: dead, but not dropped yet). Changes nothing.
-- Returns -4 when the key holds something else.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local after, seen = ARGV[1], tonumber(ARGV[2])

local fields, answer = read_plain(lock)
if not fields then return answer end
local begin = after ~= '' and redis.call('LPOS', queue, after) -- mutant: always, operand 1: no owner is empty
begin = begin and begin + 1 or seen
local members = redis.call('LRANGE', queue, begin, begin + 99)
local now, waiters = clock(), {}
if #members > 0 then
  local deadlines = redis.call('ZMSCORE', timeouts, unpack(members))
  for i, owner in ipairs(members) do
    waiters[2 * i - 1] = owner
    waiters[2 * i] = math.max(tonumber(deadlines[i] or 0) - now, 0)
  end
end
return {redis.call('PTTL', lock), fields, waiters}
