-- window_refund: a caller gives back units of a window that it took and did not use.
-- include: window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the units that are left
-- KEYS[3] permits  zset    units taken -> when, in ms
-- KEYS[4] never    string  never there (include_window)
-- ARGV[1] units    count   the number of units that the call took
-- ARGV[2] id       text    the id of the call
--
-- Returns 1 when the units came back.
-- Returns 0: the entry is not there, as its interval is over or the units came back before.
-- Returns -3: the limiter has no rate yet.
-- Returns -4: a key holds something else.
-- Returns -5: each client has a rate of its own, which the script does not know.
--
-- Safe to repeat: the units come back only if the script removes their entry from the zset.
local config, value, permits, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
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
