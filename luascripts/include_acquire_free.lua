-- include_acquire_free: acquires a plain lock that is free. It has no keys of its own.

-- acquire_free makes owner the holder of a lock that is free. It returns token, or an error.
local function acquire_free(lock, owner, lease, token)
  local set = redis.pcall('HSET', lock, owner, 1) -- the first write: if memory is full, it fails, and leaves nothing in Redis
  if type(set) == 'table' then return set end
  local expiry = redis.pcall('PEXPIRE', lock, lease)
  if type(expiry) ~= 'table' then return token end
  redis.call('DEL', lock) -- PEXPIRE is denied: the lock would never expire
  return expiry
end
