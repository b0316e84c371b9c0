-- include_acquire: acquires a plain lock. It has no keys of its own.
-- include: time, token, plain, queue, channels, acquire_free, linger

-- already_queued reports whether another attempt of owner changes nothing: the lock is held, the queue
-- has owner with these values, and its process receives Pub/Sub messages. It notifies a client that
-- may keep the lock once more, because the first message may be lost. queue is the queue as stored,
-- or false. waiter is as in reentrant_acquire.
local function already_queued(lock, owner, queue, waiter, counts)
  local offer = string.match(waiter, '^%d+ ')
  if not queue or not offer then return false end
  if not string.find(valid_queue(queue), owner .. ' ' .. offer .. '0 0 0;', 1, true) then return false end
  local fields = redis.call('HGETALL', lock)
  if #fields ~= 4 then return false end -- a queue without a holder: the lock is free
  local reached = reachable(queue_channel(lock), counts, {owner})
  if not (reached and reached[1]) then return false end
  notify_keeper(lock, fields[1] == 'leasehold_line' and fields[3] or fields[1], owner, true)
  return true
end

-- acquire_lock makes owner hold the lock `want` times, or adds it to the queue. Its result is the
-- reply of reentrant_acquire. time is the reply to TIME; nil if the caller has not called TIME. waiter
-- is "<offer> <waited> <retry> <timeout>", or "" for a TryLock, which does not join the queue, but
-- marks it.
local function acquire_lock(lock, counter, time, owner, lease, want, spare, waiter, counts)
  local fields, answer = read_plain(lock, false)
  if not fields then return answer end
  local holder, queue = nil, ''
  for i = 1, #fields, 2 do
    if fields[i] == 'leasehold_line' then
      queue = valid_queue(fields[i + 1])
    else
      holder = fields[i]
    end
  end

  if not holder then
    if want ~= '1' then
      redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
      return -2
    end
    -- mutant: operand 1: speed
    return acquire_free(lock, owner, lease, next_token(counter, time or redis.call('TIME'), nil, spare))
  end

  local left = redis.call('PTTL', lock)
  if holder == owner then
    -- PEXPIRE comes before HSET: it needs no memory, and after such a write Redis executes the rest
    -- of a script even if memory is full. So a reentry works then, too.
    redis.call('PEXPIRE', lock, math.max(left, lease))
    redis.call('HSET', lock, owner, want)
    if want ~= '1' then return '0' end
    return next_token(counter, time or redis.call('TIME'), nil, spare) -- mutant: operand 1: speed
  end

  if want ~= '1' then
    redis.call('HDEL', lock, '') -- as above
    return -2
  end
  local offer, waited, retry, timeout = string.match(waiter, '^(%d+) (%d+) (%d+) (%d+)$')
  local wait = notify_keeper(lock, holder, owner, offer)
  local new_queue, receives
  if offer then
    new_queue, receives = enqueue(queue, owner, offer, tonumber(waited), tonumber(retry), tonumber(timeout), queue_channel(lock), counts, (clock(time)))
  else
    new_queue = with_mark(queue)
  end
  if new_queue ~= queue then
    redis.pcall('HSET', lock, 'leasehold_line', new_queue) -- if the write fails, the owner is not queued, and depends on its retries
  end
  -- mutant: operand 3, operand 4: true is replied as 1, and false as a nil, which is read as 0
  if wait > 0 then return {left, receives == false and 1 or 0, wait} end
  if receives == false then return {left} end
  return left
end
