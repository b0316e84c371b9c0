-- include_free: frees a plain lock. It has no keys of its own.
-- include: channels

-- freed frees a lock that owner holds. It returns 1, or an error.
local function freed(lock, owner, publish)
  local gone = redis.pcall('HDEL', lock, owner)
  if type(gone) == 'table' then return gone end
  redis.pcall(publish, everybody(lock), '0') -- a hint: its refusal must not undo a release
  return 1
end
