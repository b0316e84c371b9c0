-- include_window: a rate limiter in the layout of Redisson's RRateLimiter. It has no keys of its own.
-- include: reply
--
-- config   rate, interval (ms), type (0: all clients together) and keepAliveTime (ms, 0 for none)
-- value    the units that are left
-- permits  the units taken: byte 16, 16 bytes of an id, the units as four bytes, least first -> when, in ms,
--          which these scripts round up
--
-- While a slot moves between nodes of a cluster, a key that is gone there is one that another node may have, and a command for it fails in the middle of
-- a script. So each script names a key that never exists: then the cluster answers TRYAGAIN before the script runs.
--
-- Redisson takes `when` from the clock of its client, and these scripts from that of the server.

-- rate_of returns the rate and the interval in ms, or nil and the answer of the script.
local function rate_of(config)
  local fields = redis.pcall('HMGET', config, 'rate', 'interval', 'type')
  if fields.err then
    if string.find(fields.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, fields
  end
  if not fields[1] then
    return nil, redis.call('PTTL', config) == -2 and -3 or -4 -- -2: there is no hash
  end
  for i = 1, 2 do
    if not fields[i] or not string.find(fields[i], '^[1-9]%d*$') or #fields[i] > 16 then return nil, -4 end
  end
  if fields[3] ~= '0' then return nil, -5 end
  return tonumber(fields[1]), tonumber(fields[2])
end

-- used returns the text of the value, false if there is none, and the number of entries. If a key holds something else, or a command is denied, it returns
-- false and nil, and an answer for the caller.
local function used(value, permits)
  local text, held, first = redis.pcall('GET', value), redis.pcall('ZCARD', permits), redis.pcall('ZRANGE', permits, 0, 0)
  local denied = failed(text) or failed(held) or failed(first)
  if denied then return false, nil, string.find(denied.err, 'WRONGTYPE', 1, true) and -4 or denied end
  if text and (not string.find(text, '^%-?%d+$') or #text > 16) then return false, nil, -4 end
  if first[1] and string.byte(first[1]) ~= #first[1] - 5 then return false, nil, -4 end -- no entry: a zset of the application
  return text, held
end

-- packed returns the member of permits for a call and its units.
local function packed(id, units)
  local low = units % 65536
  local high = (units - low) / 65536
  return string.char(#id) .. id .. string.char(low % 256, math.floor(low / 256), high % 256, math.floor(high / 256))
end

-- cost returns the units of an entry.
local function cost(text)
  if #text < 5 then return 0 end -- mutant: border: an entry has an id
  local a, b, c, d = string.byte(text, #text - 3, #text)
  return a + 256 * (b + 256 * (c + 256 * d))
end

-- counted returns the units that are left by the entries.
local function counted(permits, rate)
  local left, from = rate, 0
  while true do
    local some = redis.call('ZRANGE', permits, from, from + 999)
    for _, text in ipairs(some) do left = left - cost(text) end
    if #some < 1000 then return math.max(0, left) end
    from = from + 1000
  end
end

-- returned returns the units that are left when entries are over that had them: `left`, but no more than the entries leave that still count, unless
-- there were more before. So units that Redisson gave back by release do not come back once more when their entries are over. The entries are up to a
-- thousand of those that remain. Where there are more, these leave too many, and `left` is the bound.
local function returned(was, left, rate, entries)
  local there = rate
  for _, text in ipairs(entries) do there = there - cost(text) end
  return math.min(left, math.max(was, there))
end

-- purge removes entries that are over, a thousand at most. It returns the units that are
-- left, and whether more entries may be over.
local function purge(value, permits, rate, before)
  local was = tonumber(redis.call('GET', value))
  local left, over = was or -1, redis.call('ZRANGEBYSCORE', permits, '-inf', before, 'LIMIT', 0, 1000)
  for _, text in ipairs(over) do left = left + cost(text) end
  if #over > 0 then
    redis.call('ZREMRANGEBYRANK', permits, 0, #over - 1)
    if was then left = returned(was, left, rate, redis.call('ZRANGE', permits, 0, 999)) end
  end
  if not was or left > rate or left < 0 then
    -- The value is lost, or Redisson gave units back without their entries, or took units without counting them.
    left = counted(permits, rate)
  end
  if left ~= (was or rate) then -- mutant: always: speed
    redis.call('SET', value, string.format('%.0f', left), 'KEEPTTL')
    local alive = was and 0 or redis.call('PTTL', permits)
    if alive > 0 then redis.call('PEXPIRE', value, alive) end
  end
  return left, #over == 1000
end

-- keep gives the state the life that Redisson gives it. If a command is denied, it returns an error.
local function keep(config, value, permits)
  local text = redis.pcall('HGET', config, 'keepAliveTime')
  if failed(text) then return text end
  local alive, denied = tonumber(text) or 0, nil
  if alive > 0 then
    denied = failed(redis.pcall('PEXPIRE', config, alive))
  else
    alive = redis.pcall('PTTL', config)
    if failed(alive) then return alive end
  end
  if alive > 0 then -- mutant: border: an expiry is in the future
    -- mutant: operand 2: what is denied for one key is denied for all
    denied = denied or failed(redis.pcall('PEXPIRE', value, alive)) or failed(redis.pcall('PEXPIRE', permits, alive))
  end
  return denied
end
