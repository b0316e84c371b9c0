-- include_take: takes a plain lock. It has no keys of its own.
-- include: time, token, plain, line, channels, seize, linger

-- awaits reports whether owner stands in line, and a message reaches it: another question of it then changes nothing. line
-- is the line of the lock, or false.
local function awaits(lock, owner, line, place, counts)
  local offer = string.match(place, '^%d+ ')
  if not line or not offer then return false end
  if not string.find(legible(line), owner .. ' ' .. offer .. '0 0 0;', 1, true) then return false end
  if redis.call('HLEN', lock) ~= 2 then return false end -- a line without a holder: the lock is free
  local reaches = reached(knowing(lock), counts, {owner})
  return reaches ~= nil and reaches[1]
end

-- taken makes owner hold the lock `want` times, or puts it in line. The answer is that of
-- reentrant_acquire. time is what TIME says; nil if the caller does not know it. place is
-- "<offer> <waited> <again> <keep>", or "" if the owner does not stand in line: then it marks the line.
local function taken(lock, register, time, owner, lease, want, spare, place, counts)
  local fields, answer = plain(lock, false)
  if not fields then return answer end
  local holder, line = nil, ''
  for i = 1, #fields, 2 do
    if fields[i] == 'leasehold_line' then
      line = legible(fields[i + 1])
    else
      holder = fields[i]
    end
  end

  if not holder then
    if want ~= '1' then
      redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
      return -2
    end
    -- mutant: operand 1: speed
    return seized(lock, owner, lease, grown(register, time or redis.call('TIME'), nil, spare))
  end

  local left = redis.call('PTTL', lock)
  if holder == owner then
    -- PEXPIRE before HSET: after a write that cannot grow memory, Redis lets the
    -- rest of the script through even when memory is full.
    redis.call('PEXPIRE', lock, math.max(left, lease))
    redis.call('HSET', lock, owner, want)
    if want ~= '1' then return '0' end
    return grown(register, time or redis.call('TIME'), nil, spare) -- mutant: operand 1: speed
  end

  if want ~= '1' then
    redis.call('HDEL', lock, '') -- as above
    return -2
  end
  local offer, waited, again, keep = string.match(place, '^(%d+) (%d+) (%d+) (%d+)$')
  local wait = wanted(lock, holder, owner, offer)
  local after, hears
  if offer then
    after, hears = enlisted(line, owner, offer, tonumber(waited), tonumber(again), tonumber(keep), knowing(lock), counts, (clock(time)))
  else
    after = marked(line)
  end
  if after ~= line then
    redis.pcall('HSET', lock, 'leasehold_line', after) -- an owner whose write is refused must ask again and again
  end
  if wait > 0 then return {left, hears == false and 1 or 0, wait} end
  if hears == false then return {left} end
  return left
end
