-- include_window: a rate limiter in the layout of Redisson's RRateLimiter. It has no keys of its own.
-- include: reply
--
-- config  hash: rate, interval (ms), type (0: all clients share the rate) and keepAliveTime (ms, 0 for none)
-- value   string: the remaining permits; less than 0 after a lower rate was set, by as many as were taken above that rate.
--         Redisson reads such a value as no permits, and adds the expired ones to it, like these scripts
-- calls   zset: entry of a call -> when it took its permits, in ms, rounded up by these scripts. An entry is the
--         byte 16, 16 bytes of an id, and the number of permits in four bytes, least significant first. Redisson
--         calls this zset "permits"
--
-- Redisson takes the time from the clock of its client; these scripts take it from the server.
--
-- Each script also names a key that never exists, so that a cluster replies TRYAGAIN while the slot is migrated
-- (include_fair). Without it, a key that is already on the other node would look missing.

-- read_rate returns the rate and the interval in ms, or nil and the reply of the script.
local function read_rate(config)
  local fields = redis.pcall('HMGET', config, 'rate', 'interval', 'type')
  if fields.err then
    if string.find(fields.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, fields
  end
  if not fields[1] then
    return nil, redis.call('PTTL', config) == -2 and -3 or -4 -- -2: the hash does not exist
  end
  for i = 1, 2 do
    if not fields[i] or not string.find(fields[i], '^[1-9]%d*$') or #fields[i] > 19 then return nil, -4 end
  end
  if fields[3] ~= '0' then return nil, -5 end
  -- Redisson allows any long, but Lua counts exactly only up to 2^53.
  return math.min(tonumber(fields[1]), 2 ^ 53), math.min(tonumber(fields[2]), 2 ^ 53)
end

-- read_usage returns the text of value, false if there is none, and the number of entries. If a key has the wrong type, or a
-- command is denied, it returns false, nil, and the reply for the caller.
local function read_usage(value, calls)
  local text, held, first = redis.pcall('GET', value), redis.pcall('ZCARD', calls), redis.pcall('ZRANGE', calls, 0, 0)
  local denied = failed(text) or failed(held) or failed(first)
  if denied then return false, nil, string.find(denied.err, 'WRONGTYPE', 1, true) and -4 or denied end
  if text and (not string.find(text, '^%-?%d+$') or #text > 20) then return false, nil, -4 end
  if first[1] and string.byte(first[1]) ~= #first[1] - 5 then return false, nil, -4 end -- not an entry: the zset is one of the application
  return text, held
end

-- entry_of returns the entry of a call and its permits.
local function entry_of(id, permits)
  local low = permits % 65536
  local high = (permits - low) / 65536
  return string.char(#id) .. id .. string.char(low % 256, math.floor(low / 256), high % 256, math.floor(high / 256))
end

-- permits_of returns the permits of an entry.
local function permits_of(text)
  if #text < 5 then return 0 end -- mutant: border: an entry has an id
  local a, b, c, d = string.byte(text, #text - 3, #text)
  return a + 256 * (b + 256 * (c + 256 * d))
end

-- left_by_calls computes the remaining permits from all entries.
local function left_by_calls(calls, rate)
  local left, from = rate, 0
  while true do
    local page = redis.call('ZRANGE', calls, from, from + 999)
    for _, text in ipairs(page) do left = left - permits_of(text) end
    if #page < 1000 then return left end
    from = from + 1000
  end
end

-- left_after_removal returns the remaining permits after expired entries were removed. `left` is the stored value plus their
-- permits. That is too many if Redisson's release has returned permits before, without their entry. So the result is at most
-- what the other entries leave, but at least the stored value. entries are up to 1000 of the others; if there are more, these
-- leave too much, and `left` is the bound.
local function left_after_removal(stored, left, rate, entries)
  local by_calls = rate
  for _, text in ipairs(entries) do by_calls = by_calls - permits_of(text) end
  return math.min(left, math.max(stored, by_calls))
end

-- remove_expired removes up to 1000 entries older than the interval. It returns the remaining permits, and whether more entries
-- may have expired.
local function remove_expired(value, calls, rate, before)
  local stored = tonumber(redis.call('GET', value))
  local left, expired = stored or -1, redis.call('ZRANGEBYSCORE', calls, '-inf', before, 'LIMIT', 0, 1000)
  for _, text in ipairs(expired) do left = left + permits_of(text) end
  if #expired > 0 then
    redis.call('ZREMRANGEBYRANK', calls, 0, #expired - 1)
    if stored then left = left_after_removal(stored, left, rate, redis.call('ZRANGE', calls, 0, 999)) end
  end
  if not stored or left > rate then
    -- The value is missing, or Redisson returned permits without their entries.
    left = left_by_calls(calls, rate)
  end
  if left ~= (stored or rate) then -- mutant: always: speed
    redis.call('SET', value, string.format('%.0f', left), 'KEEPTTL')
    local ttl = stored and 0 or redis.call('PTTL', calls)
    if ttl > 0 then redis.call('PEXPIRE', value, ttl) end
  end
  return left, #expired == 1000
end

-- free_after returns the time of the entry whose expiry leaves at least `least` permits. It returns the last time if none does,
-- and nil if there are no entries. The entries are in order, each followed by its time.
local function free_after(entries, left, least)
  local at = nil
  for i = 1, #entries, 2 do
    left, at = left + permits_of(entries[i]), tonumber(entries[i + 1])
    if left >= least then break end
  end
  return at
end

-- extend_ttl sets the expiry of the keys as Redisson does. If a command is denied, it returns the error.
local function extend_ttl(config, value, calls)
  local text = redis.pcall('HGET', config, 'keepAliveTime')
  if failed(text) then return text end
  local ttl, denied = tonumber(text) or 0, nil
  if ttl > 0 then
    denied = failed(redis.pcall('PEXPIRE', config, ttl))
  else
    ttl = redis.pcall('PTTL', config)
    if failed(ttl) then return ttl end
  end
  if ttl > 0 then -- mutant: border: an expiry is in the future
    -- mutant: operand 2: what is denied for one key is denied for all
    denied = denied or failed(redis.pcall('PEXPIRE', value, ttl)) or failed(redis.pcall('PEXPIRE', calls, ttl))
  end
  return denied
end
