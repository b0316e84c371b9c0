-- window_init: a window gets its rate, or another one.
-- include: time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the units that are left
-- KEYS[3] permits  zset    units taken -> when, in ms
-- ARGV[1] rate     count   the units of each interval
-- ARGV[2] interval ms      the interval
-- ARGV[3] change   count   1 to replace another rate
--
-- Returns 1 when the script set or replaced the rate. Units that were taken before still count.
-- Returns 0: the window has this rate already.
-- Returns {rate, interval} of the window, which differ; nothing was done.
-- Returns -4: a key holds something else.
-- Returns -5: each client has a rate of its own, which the script does not know.
--
-- Safe to repeat.
local config, value, permits = KEYS[1], KEYS[2], KEYS[3]
local rate, interval, change = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

local was, every = rate_of(config)
if not was and every ~= -3 then return every end
if was == rate and every == interval then return 0 end
if was and not change then return {was, every} end
local held = redis.pcall('ZCARD', permits)
if type(held) == 'table' then
  if string.find(held.err, 'WRONGTYPE', 1, true) then return -4 end
  return held
end
redis.call('HSET', config, 'rate', string.format('%.0f', rate), 'interval', string.format('%.0f', interval), 'type', '0')
redis.call('HSETNX', config, 'keepAliveTime', '0')
if was then
  local left = rate
  local since = string.format('(%.0f', clock() - interval)
  for _, text in ipairs(redis.call('ZRANGEBYSCORE', permits, since, '+inf')) do left = left - cost(text) end
  redis.call('ZREMRANGEBYSCORE', permits, '-inf', string.sub(since, 2))
  redis.call('SET', value, string.format('%.0f', math.max(0, left)))
  keep(config, value, permits)
end
return 1
