-- window_take: a caller takes units of a window, or asks for its state.
-- include: reply, time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the units that are left
-- KEYS[3] permits  zset    units taken -> when, in ms
-- KEYS[4] never    string  never there (include_window)
-- ARGV[1] units    count   the units that the caller wants; 0 only asks
-- ARGV[2] least    count   the least units that the caller takes
-- ARGV[3] id       text    16 bytes that no other call has
-- ARGV[4] ago      ms      how long ago the first copy of this call was sent; 0 for the first copy
--
-- Returns a list: the units taken; the units left; the time in ms until the least units are
-- there, 0 if they were taken or if the caller asks again at once, and -1 if they never are;
-- the time in ms until no unit counts as taken; the rate; the interval in ms; and the time in ms until the first
-- units come back, 0 if none counts as taken.
-- Returns -3: the limiter has no rate yet.
-- Returns -4: a key holds something else.
-- Returns -5: each client has a rate of its own, which the script does not know.
--
-- The script removes a thousand entries that are over and reads a thousand that count, at most, and all that count if the value is lost or cannot be right:
-- some µs for each. Safe to repeat with the same id within the interval: the script finds the entry of the call. Where a caller takes fewer units than it
-- wants, the script looks for the entry among those that are not older than the call.
local config, value, permits, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local units, least, id, ago = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local rate, interval = rate_of(config)
if not rate then return interval end
local now, time = clock()
local _, held, answer = used(value, permits)
if not held then return answer end

-- before returns the units that a copy of this call has taken, or nil.
local function before()
  if redis.call('ZSCORE', permits, packed(id, units)) then return units end
  if ago == 0 or least == units then return nil end -- mutant: operand 1: speed
  local since, from = string.format('%.0f', now - ago - 1000), 0
  while true do
    local some = redis.call('ZRANGEBYSCORE', permits, since, '+inf', 'LIMIT', from, 1000)
    for _, text in ipairs(some) do
      if string.sub(text, 2, -5) == id then return cost(text) end
    end
    if #some < 1000 then return nil end
    from = from + 1000
  end
end

local left, more = purge(value, permits, rate, string.format('%.0f', now - interval))
local first = tonumber(redis.call('ZRANGE', permits, 0, 0, 'WITHSCORES')[2])
local latest = tonumber(redis.call('ZRANGE', permits, -1, -1, 'WITHSCORES')[2])
local taken, retry = math.min(units, left), 0
local had = units > 0 and before() -- mutant: operand 1, always, border: speed
if had then
  taken = had
elseif units > 0 then
  if taken < least then
    -- A client of Redisson that lost an answer may have taken from the value twice.
    local there = rate
    local all = redis.call('ZRANGE', permits, 0, 999)
    for _, text in ipairs(all) do there = there - cost(text) end
    if #all < 1000 and there > left then -- mutant: border 2: equal numbers are one number
      left = there
      taken = math.min(units, left)
    end
  end
  if taken < least then
    taken = 0
    local denied = keep(config, value, permits) -- a caller that waits keeps the window alive, as with Redisson
    if denied then return denied end
    if least > rate then
      retry = -1
    elseif not more then
      local freed, all = left, redis.call('ZRANGE', permits, 0, 999, 'WITHSCORES')
      for i = 1, #all, 2 do
        freed = freed + cost(all[i])
        retry = all[i + 1] + interval - now
        if freed >= least then break end
      end
    end
  else
    -- Rounded up, so that no unit comes back before its interval is over.
    local at = time[1] * 1000 + math.ceil(time[2] / 1000)
    redis.call('ZADD', permits, string.format('%.0f', at), packed(id, taken)) -- refused here when memory is full: nothing is taken
    local denied = failed(redis.pcall('SET', value, string.format('%.0f', left - taken))) or keep(config, value, permits)
    if denied then -- an error means that nothing is taken
      redis.pcall('SET', value, string.format('%.0f', left))
      redis.call('ZREM', permits, packed(id, taken))
      return denied
    end
    left, first, latest = left - taken, math.min(first or at, at), math.max(latest or 0, at)
  end
end
local reset = latest and math.max(0, latest + interval - now) or 0
local next = first and math.max(1, first + interval - now) or 0
return {taken, left, math.ceil(retry), math.ceil(reset), rate, interval, math.ceil(next)}
