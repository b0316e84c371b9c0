-- limit_take: takes permits of each key of a rate limiter, refunds them, or reads the state, in the order of the arguments.
-- later: limit_requests
--
-- KEYS[i]    key            string  the usage of each limit (include_limit)
-- ARGV[1]    count          count   the number of limits
-- ARGV[2]    rate           count   of the first limit; these three arguments repeat for each limit (include_limit)
-- ARGV[3]    per            µs      of the first limit
-- ARGV[4]    burst          count   of the first limit; 0 for an aligned one
-- ARGV[next] request_count  count   the number of requests for the key; the arguments from here on repeat for each key
-- ARGV[at+1] permits        count   the permits that a caller wants; 0 only reads; less than 0 refunds. These four arguments repeat for each request
-- ARGV[at+2] times          count   the number of callers that want these permits, one after the other; more than 1 only if they take all or none and do not wait; 0 resets the key
-- ARGV[at+3] least          count   the minimum number of permits that a caller takes; `permits` to take all or none. For a refund, the server's time in µs at which the caller would have used them
-- ARGV[at+4] wait           µs      the maximum time that a caller waits for its permits
--
-- Returns a list of numbers: the server's time in µs, and eight for each request:
--   1. the number of permits taken
--   2. the time that the caller must wait before it uses them
--   3. the permits that all limits have left
--   4. the time until the minimum number is available; 0 if it was taken, -1 if it never is
--   5. the time until no usage is left
--   6. the index of a limit, from 1. If a caller was refused, it is the limit that has the permits last; otherwise the one with
--      the fewest permits left, and of several of these the one that gets its next permit last
--   7. the permits that this limit has left
--   8. the time until this limit has one more; 0 if it has all
-- For a key of the wrong type, there is the single number -4 instead of those of its requests; it was not changed.
--
-- A caller takes permits from all limits or from none. Of several callers that want the same number, the first ones get them,
-- until no permits are left. The keys are independent of each other.
--
-- Not safe to repeat: a second copy takes, or refunds, again. Permits that were taken twice become available again over time;
-- until then the limit is too strict. After an error the call can be repeated, because the first write failed.
local count, rate, per, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local cost = per / rate

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- request returns permits, times, least and wait of a request.
local function request(at)
  local permits, times, least, wait = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  return tonumber(permits), tonumber(times), tonumber(least), tonumber(wait)
end

local text_start = string.format('gcra %.0f 0 ', now) -- formatted once, because formatting a large number is slow
local replies, n, functions, next = {now}, 1, nil, 3 * count + 2
for _, key in ipairs(KEYS) do
  local request_count = tonumber(ARGV[next])
  local text, done = redis.pcall('GET', key), false
  if request_count == 1 and count == 1 and burst > 0 and type(text) ~= 'table' then -- mutant: never, operand 5, border: speed
    -- Fast path for the usual case: one limit, one request, no reservation, and enough permits.
    local last, usage = '0', '0'
    if text then last, usage = string.match(text, '^gcra (%d+) 0 (%S+)$') end
    usage = tonumber(usage)
    if usage then -- mutant: never: speed
      local permits, times = request(next)
      usage = math.max(0, usage - math.max(0, now - last))
      permits = permits * times
      local available = math.floor((burst * cost - usage) / cost + 1e-9 + burst * 8e-16) -- as in permits_left
      if permits > 0 and permits <= available then -- mutant: never, border 2: speed
        usage = usage + permits * cost
        local reset_time = math.ceil(usage)
        -- mutant: never, operand 1: speed
        redis.call('SET', key, text_start .. string.format(usage == reset_time and '%d' or '%.17g', usage), 'PX', math.ceil(reset_time / 1000) + 1)
        local remaining = available - permits
        replies[n + 1], replies[n + 2], replies[n + 3], replies[n + 4], replies[n + 5] = permits, 0, remaining, 0, reset_time
        replies[n + 6], replies[n + 7], replies[n + 8] = 1, remaining, math.ceil(usage + (remaining + 1 - burst) * cost)
        n, done = n + 8, true
      end
    end
  end
  if not done then
    functions = functions or later() -- mutant: operand 1: speed
    local denied = functions.serve_requests(replies, key, text, now, ARGV, request, next, next + 4 * request_count - 4)
    if denied then return denied end -- GET failed, for every key
    n = #replies
  end
  next = next + 1 + 4 * request_count
end
return replies
