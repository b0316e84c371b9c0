-- window_refund: a caller gives back units of a window that it took and did not use.
-- include: window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  how many units are left
-- KEYS[3] permits  zset    what was taken -> when, in ms
-- ARGV[1] units    count   how many were taken
-- ARGV[2] id       text    by which call
--
-- Returns 1 when they came back.
-- Returns 0: they are not there any more, as the window is over or they came back before.
-- Returns -3: the limiter has no rate yet.
-- Returns -4: a key holds something else.
-- Returns -5: each client has a rate of its own, which is not known here.
--
-- Safe to repeat: what comes back goes from the zset first.
local config, value, permits = KEYS[1], KEYS[2], KEYS[3]
local units, id = tonumber(ARGV[1]), ARGV[2]

local rate, answer = rate_of(config)
if not rate then return answer end
local gone = redis.pcall('ZREM', permits, packed(id, units))
if type(gone) == 'table' then
  if string.find(gone.err, 'WRONGTYPE', 1, true) then return -4 end
  return gone
end
if gone == 0 then return 0 end
local left = tonumber(redis.call('GET', value) or nil)
if left then
  redis.call('SET', value, string.format('%.0f', math.min(rate, left + units)))
  keep(config, value, permits)
end
return 1
