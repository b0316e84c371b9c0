-- window_refund: refunds permits that a caller took from a Redisson-compatible rate limiter and did not use.
-- include: reply, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the remaining permits
-- KEYS[3] calls    zset    entry of a call -> when it took permits, in ms
-- KEYS[4] never    string  a key that never exists (include_window)
-- ARGV[1] permits  count   the number of permits that the call took
-- ARGV[2] id       text    the id of the call
--
-- Returns 1 if the permits were refunded.
-- Returns 0: the call has no entry, because its interval has passed, or the permits were refunded before.
-- Returns -3: the limiter has no rate yet.
-- Returns -4: a key has the wrong type.
-- Returns -5: each client of Redisson has its own rate, which the script does not know.
--
-- Safe to repeat: the permits are refunded together with the removal of their entry.
local config, value, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local permits, id = tonumber(ARGV[1]), ARGV[2]

local rate, problem = read_rate(config)
if not rate then return problem end
local text, held, answer = read_usage(value, calls)
if not held then return answer end
redis.call('ZREM', calls, '') -- deletes nothing; a replica rejects it, a denied ZREM fails here, and then full memory does not stop the rest
if not redis.call('ZSCORE', calls, entry_of(id, permits)) then return 0 end
local left = tonumber(text)
if left then
  local denied = failed(redis.pcall('SET', value, string.format('%.0f', math.min(rate, left + permits)))) or extend_ttl(config, value, calls)
  if denied then -- an error must mean that the permits were not refunded
    redis.pcall('SET', value, string.format('%.0f', left))
    return denied
  end
end
redis.call('ZREM', calls, entry_of(id, permits))
return 1
