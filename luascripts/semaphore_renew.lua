-- semaphore_renew: lengthens the leases of many owners' permits.
-- include: time
--
-- KEYS[i]   leases  zset   permit -> ms until which it is held; all in one slot
-- ARGV[1]   lease   ms     what each permit lives on from now
-- ARGV[i+1] owner   text   for each key the number of permits of its owner, and then their ids, one after the other
--
-- Returns a list: how many keys there are, and for each that was not renewed its place i and -2 when the owner does
-- not have all of its permits, -4 when the key holds something else.
--
-- It never shortens a lease, and never brings a permit back. Safe to repeat.
local lease = tonumber(ARGV[1])
local function words(i)
  local owner = ARGV[i + 1]
  return owner
end

local score = string.format('%.0f', clock() + lease)
local replies, at, writes = {#KEYS}, 1, false
for i, leases in ipairs(KEYS) do
  local count, why = tonumber(words(at)), nil
  if not writes then -- mutant: always: speed
    writes = type(redis.pcall('ZREM', leases, '')) ~= 'table' -- no such member: a first write that memory limits let through
  end
  for j = 1, count do
    local one = redis.pcall('ZADD', leases, 'XX', 'GT', 'CH', score, words(at + j)) -- one foreign key must not end the others
    if type(one) == 'table' then
      if not string.find(one.err, 'WRONGTYPE', 1, true) then return one end -- denied, or busy: an error is not an answer about the permits
      why = -4
      break
    end
    -- mutant: operand 1: speed
    if one == 0 and not redis.call('ZSCORE', leases, words(at + j)) then why = -2 end
  end
  at = at + count + 1
  if why then
    replies[#replies + 1] = i
    replies[#replies + 1] = why
  end
end
return replies
