-- include_handoff: hands a plain lock off to the first process in its queue. It has no keys of its own.
-- include: channels, free

-- grant_to makes next_owner the holder, and stores the queue. If PEXPIRE is denied, it changes nothing
-- and returns false: a lock without an expiry must not be granted.
local function grant_to(lock, next_owner, lease, queue)
  redis.call('HSET', lock, next_owner, 1, 'leasehold_line', queue)
  if type(redis.pcall('PEXPIRE', lock, lease)) ~= 'table' then return true end
  redis.call('HDEL', lock, next_owner, 'leasehold_line')
  return false
end

-- quick_hand_off grants the lock to the first owner in the queue if three conditions hold: a client is
-- subscribed to the channel of that process; no client is subscribed that does not use the queue; and
-- no caller outside the queue has marked it. It then returns 1. Otherwise it changes nothing and
-- returns nil, and hand_off (include_release) decides. One of 64 grants always goes to hand_off, which
-- knows when the lock must be freed. values are the fields of the owner and of the queue.
local function quick_hand_off(lock, owner, values, publish)
  local count, queue = values[1], values[2]
  if count ~= '1' or not queue or #queue > 32768 then return nil end -- mutant: border: speed
  local grants, since, next_owner, client, lease, rest = string.match(queue, '^(%d+) ([1-9]%d*)|(([%x%-]+):%d+) (%d+) 0 0 0;()')
  if not next_owner or grants % 64 == 0 then return nil end
  local shared = queue_channel(lock)
  local own = shared .. ':' .. client
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', waiters_channel(lock), shared, own)
  if listeners.err then return nil end
  if listeners[2] > listeners[4] or listeners[6] == 0 then return nil end

  redis.call('HDEL', lock, owner) -- first, because it needs no memory: then full memory does not stop the rest. The queue keeps the key alive
  queue = string.format('%d %s|', grants + 1, since) .. string.sub(queue, rest)
  if not grant_to(lock, next_owner, math.min(lease, 10000), queue) then return free_lock(lock, owner, publish) end
  redis.pcall(publish, own, '0')
  return 1
end
