-- reentrant_inspect: reads a plain lock and its queue in one consistent snapshot.
-- include: time, plain, queue
--
-- KEYS[1] lock  hash  owner -> hold count, and the queue (include_queue)
--
-- Returns {lease, {field, value, …}, {owner, timeout, …}}: the remaining lease in ms (-1 no
-- expiry, -2 no key); all fields of the hash; and the queue in order. timeout is the time in ms
-- after which the owner counts as dead if it does not retry: -1 if it is alive while its process
-- is subscribed, 0 if it is dead but still in the queue.
-- Returns -4 if the key is not a plain lock.
--
-- Changes nothing.
local lock = KEYS[1]

local fields, answer = read_plain(lock)
if not fields then return answer end
local now, waiters = clock(), {}
for i = 1, #fields, 2 do
  for owner, _, _, _, deadline in entries(valid_queue(fields[i + 1])) do -- a hold count is no queue, so it yields no entries
    waiters[#waiters + 1] = owner
    waiters[#waiters + 1] = deadline == 0 and -1 or math.max(deadline - now, 0)
  end
end
return {redis.call('PTTL', lock), fields, waiters}
