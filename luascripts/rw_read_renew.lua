-- rw_read_renew: lengthens the leases of readers of many locks.
-- include: rw
--
-- KEYS[1]      never   string  never there (include_rw)
-- KEYS[i+1]    lock    hash    mode, owner -> read holds, owner:write -> write holds; all in one slot
-- ARGV[1]      lease   ms      how long each reader lives from now
-- ARGV[3*i-1]  owner   text    "<client uuid>:<number>", which must read the i-th lock
-- ARGV[3*i]    holds   count   how often
-- ARGV[3*i+1]  beside  text    what the keys of its read leases begin with
--
-- Returns a list: how many locks there are, and for each that was not renewed its
-- place i and -2 when the owner does not read it or its lease ran out, -4 when the
-- key holds something else.
--
-- It never shortens a lease, brings nothing back, and keeps no other reader alive. Safe
-- to repeat.
local never, lease = KEYS[1], tonumber(ARGV[1])

-- renew renews one lock. It returns nothing on success.
local function renew(lock, owner, holds, beside)
  local reads = redis.pcall('HEXISTS', lock, owner)
  if type(reads) == 'table' then
    if string.find(reads.err, 'WRONGTYPE', 1, true) then return -4 end
    return reads -- denied, or busy: an error is not an answer about the lock
  end
  redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
  if reads == 0 or lives(lock, beside, owner, holds) == 0 then return -2 end
  for n = 1, holds do
    local key = timeout(beside, owner, n)
    if redis.call('PTTL', key) < lease then redis.call('PEXPIRE', key, lease) end
  end
  if redis.call('PTTL', lock) < lease then redis.call('PEXPIRE', lock, lease) end
end

local replies = {#KEYS - 1}
for i = 1, #KEYS - 1 do
  local lock = KEYS[i + 1]
  local owner, holds, beside = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
  local why = renew(lock, owner, holds, beside)
  if type(why) == 'table' then return why end
  if why then
    replies[#replies + 1] = i
    replies[#replies + 1] = why
  end
end
return replies
