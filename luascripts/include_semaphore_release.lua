-- include_semaphore_release: releases permits. It has no keys of its own.
-- include: reply, time, semaphore, semaphore_queue

-- release_permits releases the permits ids of owner, and its queue position. If leave is '1', it only checks that
-- the owner holds them. Its result is the reply of semaphore_release.
local function release_permits(free, leases, queue, timeouts, owner, ids, leave, channel, redisson_channel, publish)
  local value, held, answer = read_permits(free, leases)
  if not held and answer ~= -4 then return answer end
  local owned = {}
  if held then
    for i, at in ipairs(redis.call('ZMSCORE', leases, unpack(ids))) do
      if at then owned[#owned + 1] = ids[i] end
    end
  end
  local reply = held and (#owned == #ids and 1 or -2) or -4 -- mutant: operand 6: a reply has true as 1
  if leave == '1' then
    if held then redis.call('ZREM', leases, '') end -- deletes nothing; a replica, whose data may be old, rejects it
    return reply
  end

  local length = redis.call('LLEN', queue)
  local was_queued = remove_waiter(queue, timeouts, owner, length)
  if failed(was_queued) then return was_queued end
  if not value then -- an operator deleted the number: the next acquisition computes it
    if #owned > 0 then redis.call('ZREM', leases, unpack(owned)) end
    return reply
  end
  local free_now, waiters, removed = value + #owned, {}, 0
  if free_now > 0 and length - was_queued > 0 then -- mutant: always, operand, border: speed
    waiters, removed = living_waiters(queue, timeouts, clock(), true)
  end
  if #owned > 0 then
    redis.call('INCRBY', free, #owned) -- it follows ZREM (remove_waiter), which needs no memory, so full memory does not stop it
    redis.call('ZREM', leases, unpack(owned))
  end
  if was_queued == 1 or removed > 0 then value = 0 end -- a waiter was removed: those behind it may be able to acquire permits that were free before
  -- mutant: always, border: speed
  if #waiters > 0 then notify_waiters(channel, publish, waiters, free_now, value) end
  if #owned > 0 then notify_redisson(redisson_channel, publish, free_now) end
  return reply
end
