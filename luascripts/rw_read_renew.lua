-- rw_read_renew: extends the leases of readers of many locks.
-- include: rw
--
-- KEYS[1]      never   string  a key that never exists (include_rw)
-- KEYS[i+1]    lock    hash    mode, owner -> read holds, owner:write -> write holds; all keys in one cluster slot
-- ARGV[1]      lease   ms      the lease of each reader from now on; 0 only checks who reads
-- ARGV[2*i]    owner   text    "<client uuid>:<number>", which must have a read hold of the i-th lock
-- ARGV[2*i+1]  prefix  text    what the keys of its read leases begin with
--
-- Returns a list: the number of locks, and two numbers for each lock that was not renewed: its index i,
-- and -2 if the owner has no read hold or its lease has expired, or -4 if the key has another type.
--
-- Safe to repeat: it never shortens a lease, restores nothing, and extends the lease of no other reader.
local never, lease = KEYS[1], tonumber(ARGV[1])

-- renew renews one lock. It returns nil, or the reply for that lock.
local function renew(lock, owner, prefix)
  local count = redis.pcall('HGET', lock, owner)
  if type(count) == 'table' then
    if string.find(count.err, 'WRONGTYPE', 1, true) then return -4 end
    return count -- a denied command or a busy server says nothing about the lock
  end
  redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
  local key = count and lease_key(prefix, owner, count)
  local left = key and redis.call('PTTL', key) or -2
  if left == -2 then return -2 end
  if lease == 0 then return end -- without an expiry, PTTL is less than 0, too
  if left < lease then redis.call('PEXPIRE', key, lease) end
  if redis.call('PTTL', lock) < lease then redis.call('PEXPIRE', lock, lease) end
end

local replies = {#KEYS - 1}
for i = 1, #KEYS - 1 do
  local lock = KEYS[i + 1]
  local owner, prefix = ARGV[2 * i], ARGV[2 * i + 1]
  local problem = renew(lock, owner, prefix)
  if type(problem) == 'table' then return problem end
  if problem then
    replies[#replies + 1] = i
    replies[#replies + 1] = problem
  end
end
return replies
