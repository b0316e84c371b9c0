-- window_delete: deletes a Redisson-compatible rate limiter.
-- include: time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the remaining permits
-- KEYS[3] calls    zset    entry of a call -> when it took permits, in ms
-- KEYS[4] never    string  a key that never exists (include_window)
-- ARGV[1] before   ms      the server's time at which this call becomes invalid; 0 only reads the server's time
--
-- Returns 1 if there is no such limiter now. If its rate was lost, the other keys are deleted as well.
-- Returns -4: a key has the wrong type; nothing was changed.
-- Returns -5: each client of Redisson has its own rate, in keys unknown to the script; nothing was changed.
-- Returns the server's time in ms if the time `before` has come; nothing was changed.
--
-- Safe to repeat: a delayed duplicate arrives after `before`, so it cannot delete a limiter that was created since.
local config, value, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local before = tonumber(ARGV[1])

local now = clock()
if now >= before then return now end
local rate, problem = read_rate(config)
if not rate and problem ~= -3 then return problem end
local text, held, answer = read_usage(value, calls)
if not held then return answer end
redis.call('DEL', config, value, calls)
return 1
