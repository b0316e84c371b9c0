-- reentrant_inspect: one consistent snapshot of the lock and its line.
-- include: time, plain, line
--
-- KEYS[1] lock  hash  owner -> hold count, and the line (include_line)
--
-- Returns {lease, {field, value, …}, {owner, patience, …}}: what is left of the
-- lease in ms (-1 no expiry, -2 no key), the hash as it is, and the line in order,
-- with the ms for which each owner counts as alive without a question (-1: while
-- its process listens; 0: dead, but not dropped yet). Changes nothing.
-- Returns -4 when the key holds something else.
local lock = KEYS[1]

local fields, answer = plain(lock)
if not fields then return answer end
local now, waiters = clock(), {}
for i = 1, #fields, 2 do
  for owner, _, _, _, deadline in entries(legible(fields[i + 1])) do -- a hold count is no line
    waiters[#waiters + 1] = owner
    waiters[#waiters + 1] = deadline == 0 and -1 or math.max(deadline - now, 0)
  end
end
return {redis.call('PTTL', lock), fields, waiters}
