-- include_channels: where clients listen for a plain lock. It has no keys of its own.

-- everybody returns the channel at which waiters for the lock listen, as those of Redisson do.
-- Package keys makes the same.
local function everybody(lock)
  if string.find(lock, '{', 1, true) then return 'redisson_lock__channel:' .. lock end
  return 'redisson_lock__channel:{' .. lock .. '}'
end

-- knowing returns the channel of all clients that know of the lock's line. A client in the line
-- listens at "<channel>:<client uuid>", too. Package keys makes the same.
local function knowing(lock)
  if string.find(lock, '{', 1, true) then return 'leasehold_channel:' .. lock .. ':' end
  return 'leasehold_channel:{' .. lock .. '}'
end
