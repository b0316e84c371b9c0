-- include_free: tells waiters that a plain lock is free. It has no keys of its own.

-- everybody returns the channel at which waiters for the lock listen, as those of Redisson do.
-- Package keys makes the same.
local function everybody(lock)
  if string.find(lock, '{', 1, true) then return 'redisson_lock__channel:' .. lock end
  return 'redisson_lock__channel:{' .. lock .. '}'
end
