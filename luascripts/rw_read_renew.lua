-- rw_read_renew: lengthens the leases of readers of many locks.
-- include: rw
--
-- KEYS[1]      never   string  never there (include_rw)
-- KEYS[i+1]    lock    hash    mode, owner -> read holds, owner:write -> write holds; all in one slot
-- ARGV[1]      lease   ms      how long each reader lives from now
-- ARGV[2*i]    owner   text    "<client uuid>:<number>", which must read the i-th lock
-- ARGV[2*i+1]  beside  text    what the keys of its read leases begin with
--
-- Returns a list: how many locks there are, and for each that was not renewed its
-- place i and -2 when the owner does not read it or its lease ran out, -4 when the
-- key holds something else.
--
-- It never shortens a lease, brings nothing back, and keeps no other reader alive. Safe
-- to repeat.
local never, lease = KEYS[1], tonumber(ARGV[1])

-- renew renews one lock. It returns nothing on success.
local function renew(lock, owner, beside)
  local count = redis.pcall('HGET', lock, owner)
  if type(count) == 'table' then
    if string.find(count.err, 'WRONGTYPE', 1, true) then return -4 end
    return count -- denied, or busy: an error is not an answer about the lock
  end
  redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
  local key = count and timeout(beside, owner, count)
  local left = key and redis.call('PTTL', key) or -2
  if left == -2 then return -2 end
  if left < lease then redis.call('PEXPIRE', key, lease) end
  if redis.call('PTTL', lock) < lease then redis.call('PEXPIRE', lock, lease) end
end

local replies = {#KEYS - 1}
for i = 1, #KEYS - 1 do
  local lock = KEYS[i + 1]
  local owner, beside = ARGV[2 * i], ARGV[2 * i + 1]
  local why = renew(lock, owner, beside)
  if type(why) == 'table' then return why end
  if why then
    replies[#replies + 1] = i
    replies[#replies + 1] = why
  end
end
return replies
