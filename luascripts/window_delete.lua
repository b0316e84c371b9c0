-- window_delete: deletes a window.
-- include: time, window
--
-- KEYS[1] config   hash    rate, interval, type, keepAliveTime (include_window)
-- KEYS[2] value    string  the units that are left
-- KEYS[3] permits  zset    units taken -> when, in ms
-- KEYS[4] never    string  never there (include_window)
-- ARGV[1] before   ms      the server's time before which the script deletes it; 0 only asks for that time
--
-- Returns 1 when there is no window. What is left of one whose rate was lost is deleted as well.
-- Returns -4: a key holds something else; nothing was done.
-- Returns -5: each client has a rate of its own, and keys that the script does not know; nothing was done.
-- Returns the server's time in ms when before has come; nothing was done.
--
-- Safe to repeat. A copy that comes late does nothing, so it deletes no window that was made since.
local config, value, permits, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local before = tonumber(ARGV[1])

local now = clock()
if now >= before then return now end
local rate, why = rate_of(config)
if not rate and why ~= -3 then return why end
local text, held, answer = used(value, permits)
if not held then return answer end
redis.call('DEL', config, value, permits)
return 1
