-- window_inspect: reads a window, and changes nothing.
-- include: time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the units that are left
-- KEYS[3] permits  zset    units taken -> when, in ms
-- KEYS[4] never    string  never there (include_window)
--
-- Returns a list: the units that a caller can take; the time in ms until there is one, 0 if there is one; the time
-- in ms until no unit counts as taken; the rate; the interval in ms; and 1 if callers have taken units, else 0.
-- Returns -3: the limiter has no rate yet.
-- Returns -4: a key holds something else.
-- Returns -5: each client has a rate of its own, which the script does not know.
--
-- The script reads a thousand entries that are over and a thousand that count, at most, and all that count if the value is lost or cannot be
-- right. A window with more entries can have more units left.
local config, value, permits, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local rate, interval = rate_of(config)
if not rate then return interval end
local text, held, answer = used(value, permits)
if not held then return answer end
local now = clock()
local before = string.format('%.0f', now - interval)

-- counting returns entries that count, with their times, from the one of this number on.
local function counting(from)
  return redis.call('ZRANGEBYSCORE', permits, '(' .. before, '+inf', 'WITHSCORES', 'LIMIT', from, 1000)
end

-- The units that a taker finds: see purge, and what window_take does when they are too few.
local was, first = tonumber(text), counting(0)
local left, entries = was, {}
for i = 1, #first, 2 do entries[#entries + 1] = first[i] end
if was then
  for _, text in ipairs(redis.call('ZRANGEBYSCORE', permits, '-inf', before, 'LIMIT', 0, 1000)) do left = left + cost(text) end
  left = returned(was, left, rate, entries)
end
local wrong = not left or left > rate or left < 0
if wrong or #first < 2000 then
  local there, some, from = rate, first, 0
  repeat
    for i = 1, #some, 2 do there = there - cost(some[i]) end
    from = from + 1000
    some = #some == 2000 and counting(from) or {} -- mutant: always, operand 2: speed
  until #some == 0
  if wrong or there > left then left = there end -- mutant: border: equal numbers are one number
end
left = math.max(0, left)

local retry, reset = 0, 0
if left == 0 then retry = first[2] + interval - now end -- without an entry that counts, units are left
local latest = redis.call('ZRANGE', permits, -1, -1, 'WITHSCORES')
if latest[2] then reset = math.max(0, latest[2] + interval - now) end
return {left, math.ceil(retry), math.ceil(reset), rate, interval, (text or held > 0) and 1 or 0}
