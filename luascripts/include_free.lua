-- include_free: frees a plain lock. It has no keys of its own.
-- include: channels

-- free_lock removes owner from the lock, and notifies the waiters. It returns 1, or an error.
local function free_lock(lock, owner, publish)
  local deleted = redis.pcall('HDEL', lock, owner)
  if type(deleted) == 'table' then return deleted end
  redis.pcall(publish, waiters_channel(lock), '0') -- if publishing is denied, the release still counts
  return 1
end
