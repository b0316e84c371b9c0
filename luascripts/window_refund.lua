-- window_refund: a caller gives back units of a window that it took and did not use.
-- include: reply, window
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

local rate, why = rate_of(config)
if not rate then return why end
local text, held, answer = used(value, permits)
if not held then return answer end
redis.call('ZREM', permits, '') -- no such member: a first write that memory limits let through, and a replica or a denied right refuses
if not redis.call('ZSCORE', permits, packed(id, units)) then return 0 end
local left = tonumber(text)
if left then
  local denied = failed(redis.pcall('SET', value, string.format('%.0f', math.min(rate, left + units)))) or keep(config, value, permits)
  if denied then -- an error means that the units did not come back
    redis.pcall('SET', value, string.format('%.0f', left))
    return denied
  end
end
redis.call('ZREM', permits, packed(id, units))
return 1
