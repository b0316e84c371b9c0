-- semaphore_renew: extends the leases of the permits of many owners.
-- include: time
--
-- KEYS[i]   leases  zset   held permit -> ms at which its lease expires; all keys in one cluster slot
-- ARGV[1]   lease   ms     the lease of each permit from now on
-- ARGV[i+1] owner   text   for each key the number of permits of its owner, followed by their ids
--
-- Returns a list: the number of keys, and two numbers for each that was not renewed: its index i, and -2 if the
-- owner does not hold all of its permits, or -4 if the key has another type.
--
-- Safe to repeat: it never shortens a lease, and never restores a permit.
local lease = tonumber(ARGV[1])
local function argument(i)
  local owner = ARGV[i + 1]
  return owner
end

local score = string.format('%.0f', clock() + lease)
local replies, at, wrote = {#KEYS}, 1, false
for i, leases in ipairs(KEYS) do
  local count, problem = tonumber(argument(at)), nil
  if not wrote then -- mutant: always: speed
    wrote = type(redis.pcall('ZREM', leases, '')) ~= 'table' -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
  end
  for j = 1, count do
    local changed = redis.pcall('ZADD', leases, 'XX', 'GT', 'CH', score, argument(at + j)) -- one key of another type must not fail the other renewals
    if type(changed) == 'table' then
      if not string.find(changed.err, 'WRONGTYPE', 1, true) then return changed end -- a denied command or a busy server says nothing about the permits
      problem = -4
      break
    end
    -- mutant: operand 1: speed
    if changed == 0 and not redis.call('ZSCORE', leases, argument(at + j)) then problem = -2 end
  end
  at = at + count + 1
  if problem then
    replies[#replies + 1] = i
    replies[#replies + 1] = problem
  end
end
return replies
