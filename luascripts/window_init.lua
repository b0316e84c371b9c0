-- window_init: a window gets its rate, or another one.
-- include: time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  how many units are left
-- KEYS[3] permits  zset    what was taken -> when, in ms
-- ARGV[1] rate     count   how many units
-- ARGV[2] interval ms      in which time
-- ARGV[3] change   count   1 to change a rate that is there
--
-- Returns 1 when it was set or changed, with what was taken before kept.
-- Returns 0: it is so already.
-- Returns {rate, interval} that differ; nothing was done.
-- Returns -4: a key holds something else.
-- Returns -5: each client has a rate of its own, which is not known here.
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
