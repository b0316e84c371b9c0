-- window_inspect: reads a Redisson-compatible rate limiter.
-- include: time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the remaining permits
-- KEYS[3] calls    zset    entry of a call -> when it took permits, in ms
-- KEYS[4] never    string  a key that never exists (include_window)
--
-- Returns a list: the permits that a caller can take; the time in ms until there is one, 0 if there is one; the time in ms
-- until all permits are available; the rate; the interval in ms; and 1 if callers have taken permits, otherwise 0.
-- Returns -3: the limiter has no rate yet.
-- Returns -4: a key has the wrong type.
-- Returns -5: each client of Redisson has its own rate, which the script does not know.
--
-- The script reads up to 1000 entries that have expired and up to 1000 that count; all that count if the value is missing or
-- impossible. With more entries than that, more permits may remain than it returns.
--
-- Changes nothing.
local config, value, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local rate, interval = read_rate(config)
if not rate then return interval end
local text, held, answer = read_usage(value, calls)
if not held then return answer end
local now = clock()
local before = string.format('%.0f', now - interval)

-- counting returns up to 1000 entries that still count, with their times, after skipping `from` of them.
local function counting(from)
  return redis.call('ZRANGEBYSCORE', calls, '(' .. before, '+inf', 'WITHSCORES', 'LIMIT', from, 1000)
end

-- The permits that window_take would find: this repeats remove_expired, and the check that window_take makes if they are too few.
local stored, first = tonumber(text), counting(0)
local left, entries = stored, {}
for i = 1, #first, 2 do entries[#entries + 1] = first[i] end
if stored then
  for _, text in ipairs(redis.call('ZRANGEBYSCORE', calls, '-inf', before, 'LIMIT', 0, 1000)) do left = left + permits_of(text) end
  left = left_after_removal(stored, left, rate, entries)
end
local wrong = not left or left > rate
if wrong or #first < 2000 then
  local by_calls, page, from = rate, first, 0
  repeat
    for i = 1, #page, 2 do by_calls = by_calls - permits_of(page[i]) end
    from = from + 1000
    page = #page == 2000 and counting(from) or {} -- mutant: always, operand 2: speed
  until #page == 0
  if wrong or by_calls > left then left = by_calls end -- mutant: border: equal numbers are one number
end

local retry, reset = 0, 0
if left < 1 then retry = free_after(first, left, 1) + interval - now end -- some entry counts, because otherwise all permits would be left
local latest = redis.call('ZRANGE', calls, -1, -1, 'WITHSCORES')
if latest[2] then reset = math.max(0, latest[2] + interval - now) end
return {math.max(0, left), math.ceil(retry), math.ceil(reset), rate, interval, (text or held > 0) and 1 or 0}
