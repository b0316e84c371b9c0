-- include_seize: takes a plain lock that is free. It has no keys of its own.

-- seized makes owner the holder of a lock that is free. It returns token, or an error.
local function seized(lock, owner, lease, token)
  local set = redis.pcall('HSET', lock, owner, 1) -- refused here when memory is full: nothing is left in Redis
  if type(set) == 'table' then return set end
  local expiry = redis.pcall('PEXPIRE', lock, lease)
  if type(expiry) ~= 'table' then return token end
  redis.call('DEL', lock) -- without the right to PEXPIRE the lock would never end
  return expiry
end
