-- include_give: gives a plain lock back. It has no keys of its own.
-- include: time, token, line, channels, free, hand

-- strangers reports whether a client listens that does not stand in line; nil if that cannot
-- be known.
local function strangers(waiters)
  if not waiters.counts then return nil end
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', waiters.channel, waiters.ours)
  if listeners.err then return nil end
  return tonumber(listeners[2]) > tonumber(listeners[4])
end

-- succeeded grants the lock of owner to the next in line. It returns the answer of the
-- script; or nil if the lock is to be freed, and the answer then.
local function succeeded(lock, register, time, owner, line, waiters, last, spare, heir)
  local now, stamp = clock(time)
  local before, mark, since = string.match(line, '^(%d+) (0?)(%d+)|')
  local grants = (tonumber(before) or 0) + 1
  since = tonumber(since) or now
  local others = strangers(waiters)
  local most, pause = 640, 10000
  if others then
    most, pause = 4, 0
  elseif others == nil then
    most, pause = 16, 0
  elseif mark == '0' then
    most, pause = 4, 1000
  end
  if grants > math.max(most, standing(line)) and math.abs(now - since) >= pause then
    redis.pcall(waiters.publish, waiters.ours, 'aside')
    return nil, 2
  end

  local who, lease, rest = successor(line, heir and heir.owner or '', heir and heir.offer, waiters.ours, waiters.counts, now)
  if not who and heir then who, lease = heir.owner, heir.offer end
  if not who then return nil, 1 end
  local inherits, sound, token = heir and who == heir.owner, true, nil
  if inherits then sound, token = pcall(grown, register, stamp, last, spare) end -- a fault of the register must not undo a release
  if not sound then return nil, 1 end

  rest = string.format('%d %s%.0f|', grants, mark or '', since) .. string.gsub(rest, '^[^|]*|', '', 1)
  if heir and not inherits then rest = enlisted(rest, heir.owner, heir.offer, 0, heir.again, heir.keep, waiters.ours, waiters.counts, now) end
  if not granted(lock, who, lease, rest) then return nil, 1 end
  redis.call('HDEL', lock, owner)
  if inherits then return token end
  redis.pcall(waiters.publish, waiters.ours .. ':' .. client(who), '0')
  return 1
end

-- given leaves `leave` holds of owner. With none left, the lock goes to the next in line. The
-- answer is that of reentrant_release.
--
-- time is what TIME says; nil if the caller does not know it. heir is the owner that waits in
-- the same process; nil if there is none.
local function given(lock, register, time, owner, leave, publish, counts, last, spare, heir)
  local found = redis.pcall('HMGET', lock, owner, 'leasehold_line')
  if found.err then
    if string.find(found.err, 'WRONGTYPE', 1, true) then return -4 end
    return found
  end
  local count, line = found[1], found[2] and legible(found[2]) or ''
  if not count then
    redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
    local rest = struck(line, owner)
    if rest ~= line then
      redis.call('HDEL', lock, 'leasehold_line') -- first, as memory limits let it through, and what follows it
      -- Only next to an owner: a key that is gone would come back without an expiry.
      if string.find(rest, ';', 1, true) and redis.call('HLEN', lock) > 0 then redis.call('HSET', lock, 'leasehold_line', rest) end
    end
    return -2
  end
  if not string.find(count, '^[0-9]+$') then return -4 end

  if leave ~= '0' then
    redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let through, and a replica refuses
    if count ~= leave then redis.call('HSET', lock, owner, leave) end
    return 1
  end

  -- The owner's field goes last, and the key with it: in a slot that moves to another
  -- node of a cluster, a key that is gone cannot be written any more.
  local aside
  if heir or found[2] then -- mutant: always: speed
    redis.call('HDEL', lock, 'leasehold_line') -- first, as memory limits let it through, and what follows it
    local waiters = {channel = everybody(lock), publish = publish, counts = counts}
    waiters.ours = knowing(lock)
    local answer, without = succeeded(lock, register, time, owner, line, waiters, last, spare, heir)
    if answer then return answer end
    aside = without == 2
  end
  local answer = freed(lock, owner, publish)
  return aside and 2 or answer
end
