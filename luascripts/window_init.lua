-- window_init: a window gets its rate, or another one.
-- include: reply, time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the units that are left
-- KEYS[3] permits  zset    units taken -> when, in ms
-- KEYS[4] never    string  never there (include_window)
-- ARGV[1] rate     count   the units of each interval
-- ARGV[2] interval ms      the interval
-- ARGV[3] before   ms      the server's time before which the script replaces another rate; 0 for never
--
-- Returns 1 when the script set or replaced the rate. Units that were taken before still count.
-- Returns 0: the window has this rate already.
-- Returns {rate, interval, now}: those of the window, which differ, and the server's time in ms, as before has come; nothing was done.
-- Returns -4: a key holds something else.
-- Returns -5: each client has a rate of its own, which the script does not know.
--
-- To replace a rate takes time for each entry that counts, some µs. Safe to repeat. A copy that comes late replaces no rate, so it undoes no newer call.
local config, value, permits, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local rate, interval, before = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local was, every = rate_of(config)
if not was and every ~= -3 then return every end
if was == rate and every == interval then return 0 end
local now = clock()
if was and now >= before then return {was, every, now} end
local text, held, answer = used(value, permits)
if not held then return answer end
local alive = redis.call('HGET', config, 'keepAliveTime') or '0'
local left, since = rate, string.format('(%.0f', now - interval)
if was then -- mutant: always: speed
  for _, one in ipairs(redis.call('ZRANGEBYSCORE', permits, since, '+inf')) do left = left - cost(one) end
end
redis.call('HSET', config, 'rate', string.format('%.0f', rate), 'interval', string.format('%.0f', interval), 'type', '0', 'keepAliveTime', alive)
if was then
  local denied = failed(redis.pcall('SET', value, string.format('%.0f', math.max(0, left)))) or keep(config, value, permits)
  denied = denied or failed(redis.pcall('ZREMRANGEBYSCORE', permits, '-inf', string.sub(since, 2))) -- last, as entries do not come back after an error
  if denied then -- an error means that the rate is the one before
    redis.call('HSET', config, 'rate', string.format('%.0f', was), 'interval', string.format('%.0f', every))
    redis.pcall('SET', value, text or '-1') -- less than 0: the next taker counts the entries
    return denied
  end
end
return 1
