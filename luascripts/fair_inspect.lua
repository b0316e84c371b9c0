-- fair_inspect: one consistent snapshot of the lock and its queue.
--
-- KEYS[1] lock      hash  owner -> hold count
-- KEYS[2] queue     list  waiting owners, first come first
-- KEYS[3] timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
--
-- Returns {lease, {field, value, …}, {owner, patience, …}}: what is left of the
-- lease in ms (-1 no expiry, -2 no key), the hash as it is, and the queue in
-- order, with the ms for which each owner counts as alive if it is not heard
-- from (0 dead, though not dropped yet). Changes nothing.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local waiters = {}
for _, owner in ipairs(redis.call('LRANGE', queue, 0, -1)) do
  local deadline = tonumber(redis.call('ZSCORE', timeouts, owner) or 0)
  waiters[#waiters + 1] = owner
  waiters[#waiters + 1] = math.max(deadline - now, 0)
end
return {redis.call('PTTL', lock), redis.call('HGETALL', lock), waiters}
