-- include_channels: the Pub/Sub channels of a plain lock. It has no keys of its own.

-- waiters_channel returns the channel of all waiters of the lock, including Redisson's. Package
-- keys builds the same name.
local function waiters_channel(lock)
  if string.find(lock, '{', 1, true) then return 'redisson_lock__channel:' .. lock end
  return 'redisson_lock__channel:{' .. lock .. '}'
end

-- queue_channel returns the channel of all clients that use the queue of the lock. A client in the
-- queue also subscribes to "<channel>:<client uuid>". Package keys builds the same names.
local function queue_channel(lock)
  if string.find(lock, '{', 1, true) then return 'leasehold_channel:' .. lock .. ':' end
  return 'leasehold_channel:{' .. lock .. '}'
end
