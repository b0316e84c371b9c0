-- window_init: sets or replaces the rate of a Redisson-compatible rate limiter.
-- include: reply, time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the remaining permits
-- KEYS[3] calls    zset    entry of a call -> when it took permits, in ms
-- KEYS[4] never    string  a key that never exists (include_window)
-- ARGV[1] rate     count   the permits of each interval
-- ARGV[2] interval ms      the interval
-- ARGV[3] replace  count   1 if the script may replace a different rate; otherwise 0
-- ARGV[4] before   ms      the server's time at which this call becomes invalid; 0 only reads the rate and the server's time
--
-- Returns 1 if the script set or replaced the rate. Permits that were taken before still count.
-- Returns 0: the limiter has this rate already.
-- Returns {rate, interval}: the limiter has this different rate, and the script may not replace it.
-- Returns -4: a key has the wrong type.
-- Returns -5: each client of Redisson has its own rate, which the script does not know.
-- Returns the server's time in ms if the time `before` has come; nothing was changed.
--
-- Replacing a rate takes a few µs for each entry that still counts.
--
-- Safe to repeat: a delayed duplicate arrives after `before`, so it undoes no newer call, and creates no limiter that was deleted since.
local config, value, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local rate, interval, replace, before = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local old_rate, old_interval = read_rate(config)
if not old_rate and old_interval ~= -3 then return old_interval end
if old_rate == rate and old_interval == interval then return 0 end
if old_rate and replace == '0' then return {old_rate, old_interval} end
local now = clock()
if now >= before then return now end
local _, held, answer = read_usage(value, calls)
if not held then return answer end
local keep_alive = redis.call('HGET', config, 'keepAliveTime') or '0'
local left, since = rate, string.format('(%.0f', now - interval)
if old_rate then -- mutant: always: speed
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', calls, since, '+inf')) do left = left - permits_of(entry) end
end
redis.call('HSET', config, 'rate', string.format('%.0f', rate), 'interval', string.format('%.0f', interval), 'type', '0', 'keepAliveTime', keep_alive)
if old_rate then
  local denied = failed(redis.pcall('SET', value, string.format('%.0f', left))) or extend_ttl(config, value, calls)
  denied = denied or failed(redis.pcall('ZREMRANGEBYSCORE', calls, '-inf', string.sub(since, 2))) -- last, because removed entries cannot be restored after an error
  if denied then -- an error must mean that the limiter still has its old rate
    redis.call('HSET', config, 'rate', string.format('%.0f', old_rate), 'interval', string.format('%.0f', old_interval))
    redis.pcall('SET', value, string.format('%.0f', left_by_calls(calls, old_rate)))
    return denied
  end
end
return 1
