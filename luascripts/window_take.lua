-- window_take: takes permits from a Redisson-compatible rate limiter, or reads its state.
-- include: reply, time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the remaining permits
-- KEYS[3] calls    zset    entry of a call -> when it took permits, in ms
-- KEYS[4] never    string  a key that never exists (include_window)
-- ARGV[1] permits  count   the permits that the caller wants; 0 only reads
-- ARGV[2] least    count   the minimum number of permits that the caller takes
-- ARGV[3] id       text    16 bytes, unique to the call
-- ARGV[4] age      ms      how long ago the first copy of this call was sent; 0 for the first copy
--
-- Returns a list:
--   1. the permits taken
--   2. the permits left
--   3. the time in ms until the minimum number is available; 0 if it was taken, or the caller can retry at once; -1 if it
--      never is
--   4. the time in ms until all permits are available
--   5. the rate
--   6. the interval in ms
--   7. the time in ms until the first permits become available again; 0 if all are available
-- Returns -3: the limiter has no rate yet.
-- Returns -4: a key has the wrong type.
-- Returns -5: each client of Redisson has its own rate, which the script does not know.
--
-- The script removes up to 1000 entries that have expired, and reads up to 1000 that count; all that count if the value is
-- missing or impossible. Each entry takes a few µs.
--
-- Safe to repeat with the same id within the interval: the second copy finds the entry of the call. If the caller accepts fewer
-- permits than it wants, the script has to search for it, among the entries that are not older than the call by more than
-- a minute.
local config, value, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local permits, least, id, age = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local rate, interval = read_rate(config)
if not rate then return interval end
local now, time = clock()
local _, held, answer = read_usage(value, calls)
if not held then return answer end

-- taken_before returns the permits that an earlier copy of this call took, or nil.
local function taken_before()
  if redis.call('ZSCORE', calls, entry_of(id, permits)) then return permits end
  if age == 0 or least == permits then return nil end -- mutant: operand 1: speed
  local since, from = string.format('%.0f', now - age - 60000), 0 -- the server's clock may have been set forward since the first copy
  while true do
    local page = redis.call('ZRANGEBYSCORE', calls, since, '+inf', 'LIMIT', from, 1000)
    for _, text in ipairs(page) do
      if string.sub(text, 2, -5) == id then return permits_of(text) end
    end
    if #page < 1000 then return nil end
    from = from + 1000
  end
end

local left, more = remove_expired(value, calls, rate, string.format('%.0f', now - interval))
local first = tonumber(redis.call('ZRANGE', calls, 0, 0, 'WITHSCORES')[2])
local latest = tonumber(redis.call('ZRANGE', calls, -1, -1, 'WITHSCORES')[2])
local taken, retry = math.min(permits, math.max(0, left)), 0
local earlier = permits > 0 and taken_before() -- mutant: operand 1, always, border: speed
if permits == 0 or taken < least then
  -- A client of Redisson may have subtracted from the value twice, after a lost reply. The entries are right.
  local by_calls = rate
  local all = redis.call('ZRANGE', calls, 0, 999)
  for _, text in ipairs(all) do by_calls = by_calls - permits_of(text) end
  if #all < 1000 and by_calls > left then -- mutant: border 2: equal numbers are one number
    left = by_calls
    taken = math.min(permits, math.max(0, left))
  end
end
if earlier then
  taken = earlier
elseif permits > 0 then
  if taken < least then
    taken = 0
    local denied = extend_ttl(config, value, calls) -- a waiting caller extends the expiry, as with Redisson
    if denied then return denied end
    if least > rate then
      retry = -1
    elseif not more then
      retry = free_after(redis.call('ZRANGE', calls, 0, 999, 'WITHSCORES'), left, least) + interval - now
    end
  else
    -- Rounded up, so that no permit becomes available before its interval has passed.
    local at = time[1] * 1000 + math.ceil(time[2] / 1000)
    redis.call('ZADD', calls, string.format('%.0f', at), entry_of(id, taken)) -- the first write: if memory is full, it fails, and nothing is taken
    local denied = failed(redis.pcall('SET', value, string.format('%.0f', left - taken))) or extend_ttl(config, value, calls)
    if denied then -- an error must mean that nothing was taken
      redis.pcall('SET', value, string.format('%.0f', left))
      redis.call('ZREM', calls, entry_of(id, taken))
      return denied
    end
    left, first, latest = left - taken, math.min(first or at, at), math.max(latest or 0, at)
  end
end
-- mutant: always, border: speed
if left < 0 then first = free_after(redis.call('ZRANGE', calls, 0, 999, 'WITHSCORES'), left, 1) end
local reset = latest and math.max(0, latest + interval - now) or 0
local next = first and math.max(1, first + interval - now) or 0
return {taken, math.max(0, left), math.ceil(retry), math.ceil(reset), rate, interval, math.ceil(next)}
