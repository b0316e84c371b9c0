-- include_semaphore_give: gives permits back. It has no keys of its own.
-- include: reply, time, semaphore, semaphore_queue

-- put_back gives back the permits ids of owner, and its place in the queue, unless leave is '1'. The answer is that of semaphore_release.
local function put_back(free, leases, queue, alive, owner, ids, leave, channel, change, publish)
  local value, held, answer = stock(free, leases)
  if not held and answer ~= -4 then return answer end
  local have = {}
  if held then
    for i, at in ipairs(redis.call('ZMSCORE', leases, unpack(ids))) do
      if at then have[#have + 1] = ids[i] end
    end
  end
  local verdict = held and (#have == #ids and 1 or -2) or -4 -- mutant: operand 6: a reply has true as 1
  if leave == '1' then
    if held then redis.call('ZREM', leases, '') end -- no such member: a replica, whose data may be old, refuses it
    return verdict
  end

  local long = redis.call('LLEN', queue)
  local waited = depart(queue, alive, owner, long)
  if failed(waited) then return waited end
  if not value then -- deleted by hand: the next acquisition counts what is held
    if #have > 0 then redis.call('ZREM', leases, unpack(have)) end
    return verdict
  end
  local now_free, living, dropped = value + #have, {}, 0
  if now_free > 0 and long - waited > 0 then -- mutant: always, operand, border: speed
    living, dropped = queued(queue, alive, clock(), true)
  end
  if #have > 0 then
    redis.call('INCRBY', free, #have) -- after ZREM, a first write that memory limits let through
    redis.call('ZREM', leases, unpack(have))
  end
  if waited == 1 or dropped > 0 then value = 0 end -- the waiters behind one that is gone can have permits that were free before
  -- mutant: always, border: speed
  if #living > 0 then spread(channel, publish, living, now_free, value) end
  if #have > 0 then announce(change, publish, now_free) end
  return verdict
end
