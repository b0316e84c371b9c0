-- include_free: frees a plain lock. It has no keys of its own.

-- everybody returns the channel at which waiters for the lock listen, as those of Redisson do.
-- Package keys makes the same.
local function everybody(lock)
  if string.find(lock, '{', 1, true) then return 'redisson_lock__channel:' .. lock end
  return 'redisson_lock__channel:{' .. lock .. '}'
end

-- freed frees a lock that owner holds. It returns 1, or an error.
local function freed(lock, owner, publish)
  local gone = redis.pcall('HDEL', lock, owner)
  if type(gone) == 'table' then return gone end
  redis.pcall(publish, everybody(lock), '0') -- a hint: its refusal must not undo a release
  return 1
end

-- sole reports whether owner holds the lock by itself, and no process stands in line, by what
-- HMGET says of the two fields.
local function sole(found)
  return found[1] and not found[2] and not string.find(found[1], '[^0-9]')
end
