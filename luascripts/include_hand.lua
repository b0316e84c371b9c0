-- include_hand: hands a plain lock to the first process in line. It has no keys of its own.
-- include: channels, free

-- granted makes who the holder, with this line. It reports false, and does nothing, where
-- the right to PEXPIRE is missing: a lock without an end must not be granted.
local function granted(lock, who, lease, line)
  redis.call('HSET', lock, who, 1, 'leasehold_line', line)
  if type(redis.pcall('PEXPIRE', lock, lease)) ~= 'table' then return true end
  redis.call('HDEL', lock, who, 'leasehold_line')
  return false
end

-- handed grants the lock of owner to the first in line, where that is plainly right: the server
-- counts a listener at the channel of its process, and none that does not stand in line; nor has a
-- caller outside the line left its mark. It returns
-- 1; or nil, and then it has done nothing, and the rules of include_give decide. They decide one of
-- 64 grants in any case: they know when to let the lock go. found is what HMGET says of the fields
-- of the owner and the line.
local function handed(lock, owner, found, publish)
  local count, line = found[1], found[2]
  if count ~= '1' or not line or #line > 32768 then return nil end -- mutant: border: speed
  local grants, since, who, process, lease, rest = string.match(line, '^(%d+) ([1-9]%d*)|(([%x%-]+):%d+) (%d+) 0 0 0;()')
  if not who or grants % 64 == 0 then return nil end
  local ours = knowing(lock)
  local channel = ours .. ':' .. process
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', everybody(lock), ours, channel)
  if listeners.err then return nil end
  if listeners[2] > listeners[4] or listeners[6] == 0 then return nil end

  redis.call('HDEL', lock, owner) -- first, as memory limits let it through, and what follows it; the line keeps the key
  line = string.format('%d %s|', grants + 1, since) .. string.sub(line, rest)
  if not granted(lock, who, math.min(lease, 10000), line) then return freed(lock, owner, publish) end
  redis.pcall(publish, channel, '0')
  return 1
end
