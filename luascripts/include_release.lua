-- include_release: releases a plain lock. It has no keys of its own.
-- include: time, token, queue, channels, free, handoff

-- foreign_listeners reports whether a client is subscribed that does not use the queue, such as
-- Redisson's. All clients that use the queue also subscribe to its channel, so the difference of the two
-- counts tells. It returns nil if that is unknown.
local function foreign_listeners(channels)
  if not channels.counts then return nil end
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', channels.all, channels.queue)
  if listeners.err then return nil end
  return tonumber(listeners[2]) > tonumber(listeners[4])
end

-- hand_off grants the lock of owner to the next owner in the queue. It returns the reply of the script.
-- If the lock must be freed instead, it returns nil and that reply: 1, or 2 if the processes in the queue
-- must let others go first.
--
-- Callers outside the queue can only acquire a free lock, so hand_off has it freed after some grants in a
-- row: after 4 if foreign clients are subscribed; after 16 if that is unknown; after 4, and at least a
-- second, if a caller has marked the queue; otherwise after 640, and at least 10 s, for Redisson's tryLock,
-- which leaves no mark. Each process in the queue gets the lock before that. The message "aside" makes the
-- clients that use the queue wait a little, because they would otherwise always be the first to retry.
--
-- named is the next owner that the release names, {owner, offer, retry, timeout}, or nil.
local function hand_off(lock, counter, time, owner, queue, channels, last, spare, named)
  local now, time_reply = clock(time)
  local stored_grants, mark, since = string.match(queue, '^(%d+) (0?)(%d+)|')
  local grants = (tonumber(stored_grants) or 0) + 1
  since = tonumber(since) or now
  local foreign = foreign_listeners(channels)
  local max_grants, min_age = 640, 10000
  if foreign then
    max_grants, min_age = 4, 0
  elseif foreign == nil then
    max_grants, min_age = 16, 0
  elseif mark == '0' then
    max_grants, min_age = 4, 1000
  end
  -- Free the lock for callers outside the queue.
  if grants > math.max(max_grants, queue_length(queue)) and math.abs(now - since) >= min_age then
    redis.pcall(channels.publish, channels.queue, 'aside')
    return nil, 2
  end

  local chosen, lease, rest = first_grantable(queue, named and named.owner or '', named and named.offer, channels.queue, channels.counts, now)
  if not chosen and named then chosen, lease = named.owner, named.offer end
  if not chosen then return nil, 1 end
  local to_named, ok, token = named and chosen == named.owner, true, nil
  if to_named then ok, token = pcall(next_token, counter, time_reply, last, spare) end -- an invalid token counter must not fail the release
  if not ok then return nil, 1 end

  rest = string.format('%d %s%.0f|', grants, mark or '', since) .. string.gsub(rest, '^[^|]*|', '', 1)
  if named and not to_named then rest = enqueue(rest, named.owner, named.offer, 0, named.retry, named.timeout, channels.queue, channels.counts, now) end
  if not grant_to(lock, chosen, lease, rest) then return nil, 1 end
  redis.call('HDEL', lock, owner)
  if to_named then return token end
  redis.pcall(channels.publish, channels.queue .. ':' .. client(chosen), '0')
  return 1
end

-- release_lock leaves owner `leave` holds. With 0 it grants the lock to the next owner in the queue, or
-- frees it. Its result is the reply of reentrant_release.
--
-- time is the reply to TIME; nil if the caller has not called TIME. named is as in hand_off.
local function release_lock(lock, counter, time, owner, leave, publish, counts, last, spare, named)
  local values = redis.pcall('HMGET', lock, owner, 'leasehold_line')
  if values.err then
    if string.find(values.err, 'WRONGTYPE', 1, true) then return -4 end
    return values
  end
  local count, queue = values[1], values[2] and valid_queue(values[2]) or ''
  if not count then
    redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
    local rest = without_owner(queue, owner)
    if rest ~= queue then
      redis.call('HDEL', lock, 'leasehold_line') -- first, because it needs no memory: then full memory does not stop the rest
      -- The number of grants stays: callers outside the queue depend on it. Without an owner in the hash, HSET would
      -- create a key without an expiry.
      if not string.find(rest, '^0 %d+|$') and redis.call('HLEN', lock) > 0 then redis.call('HSET', lock, 'leasehold_line', rest) end
    end
    return -2
  end
  if not string.find(count, '^[0-9]+$') then return -4 end

  if leave ~= '0' then
    redis.call('HDEL', lock, '') -- deletes nothing; a replica rejects it, and then full memory does not stop the rest
    if count ~= leave then redis.call('HSET', lock, owner, leave) end
    return 1
  end

  -- The owner's field is deleted last, because the key goes with it. While a cluster slot is migrated,
  -- a key that is gone cannot be written on this node.
  local others_first
  if named or values[2] then -- mutant: always: speed
    redis.call('HDEL', lock, 'leasehold_line') -- first, because it needs no memory: then full memory does not stop the rest
    local channels = {all = waiters_channel(lock), publish = publish, counts = counts}
    channels.queue = queue_channel(lock)
    local answer, code = hand_off(lock, counter, time, owner, queue, channels, last, spare, named)
    if answer then return answer end
    others_first = code == 2
  end
  local answer = free_lock(lock, owner, publish)
  return others_first and 2 or answer
end
