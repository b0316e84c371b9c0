-- reentrant_renew: lengthens the leases of many locks.
--
-- KEYS[i]   lock   hash   owner -> hold count; all in one slot
-- ARGV[1]   lease  ms     what each lock lives on from now
-- ARGV[i+1] owner  text   "<client uuid>:<number>", who must hold KEYS[i]
--
-- Returns a list with, for each key, 1 when it was renewed, -2 when the owner
-- does not hold it, -4 when the key holds something else.
--
-- Only ever lengthens, and never brings a key back. Safe to repeat.
local lease = tonumber(ARGV[1])

local replies = {}
for i, lock in ipairs(KEYS) do
  local owner = ARGV[i + 1]
  local held = redis.pcall('HEXISTS', lock, owner) -- one foreign key must not end the others
  if held == 1 then
    if redis.call('PTTL', lock) < lease then redis.call('PEXPIRE', lock, lease) end
    replies[i] = 1
  elseif held == 0 then
    replies[i] = -2
  elseif string.find(held.err, 'WRONGTYPE', 1, true) then
    replies[i] = -4
  else
    return held -- denied, or busy: an error is not an answer about the lock
  end
end
return replies
