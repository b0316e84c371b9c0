-- limit_take: callers take units of each key of a rate limiter, or ask for its state, in the order of the arguments.
-- later: limit_questions
--
-- KEYS[i]    debts  string  the debt of each limit (include_limit)
-- ARGV[1]    count  count   the number of limits
-- ARGV[2]    rate   count   of the first limit; these three arguments repeat for each limit (include_limit)
-- ARGV[3]    per    µs      of the first limit
-- ARGV[4]    burst  count   of the first limit; 0 for an aligned one
-- ARGV[next] asked  count   the number of questions about the key; the arguments from here on repeat for each key
-- ARGV[at+1] units  count   the units that a caller wants; 0 only asks; less than 0 refunds. Each question repeats these four arguments
-- ARGV[at+2] times  count   the number of callers that want these units, one after the other; more than 1 only if they take all or none and do not wait; 0 resets the key
-- ARGV[at+3] least  count   the least units that a caller takes, the same as `units` to take all or none; of a refund, the server's time in µs at which the caller would have used the units
-- ARGV[at+4] wait   µs      the longest that a caller would wait for its turn
--
-- Returns a list of numbers: the server's time in µs, and for each question eight: the number of units taken; the time that the
-- caller must wait before it uses them; the units that all limits have left; the time until the least units are there, 0 if
-- they were taken and -1 if they never are; the time until nothing is owed; the number of a limit, from 1 on; the units that this
-- limit has left; and the time until it has one more, 0 if it has all. The limit is the one that has the least units left, or, if a
-- caller was refused, the one that has the units for it last. Of several with the least units left it is the one that gets its next unit last.
-- For all questions about a key that holds something else there is one number, -4; nothing was done to it.
--
-- A caller takes units of all limits or of none. Of several callers that want the same number, the
-- script serves the first ones, until the units run out. No key depends on another.
--
-- Not safe to repeat: a second copy takes again, and refunds again. Time gives back the units that were taken
-- twice, and the limit is too strict until then. An error is safe to repeat: the first write was refused.
local count, rate, per, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local unit = per / rate

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- question returns units, times, least and wait of a question.
local function question(at)
  local units, times, least, wait = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  return tonumber(units), tonumber(times), tonumber(least), tonumber(wait)
end

local stamp = string.format('gcra %.0f 0 ', now) -- once: a large number takes long to become text
local replies, n, functions, next = {now}, 1, nil, 3 * count + 2
for _, debts in ipairs(KEYS) do
  local asked = tonumber(ARGV[next])
  local text, done = redis.pcall('GET', debts), false
  if asked == 1 and count == 1 and burst > 0 and type(text) ~= 'table' then -- mutant: never, operand 5, border: speed
    -- The usual case takes fewer steps: one limit, one question, no reservation ahead, and the units are there.
    local last, debt = '0', '0'
    if text then last, debt = string.match(text, '^gcra (%d+) 0 (%S+)$') end
    debt = tonumber(debt)
    if debt then -- mutant: never: speed
      local units, times = question(next)
      debt = math.max(0, debt - math.max(0, now - last))
      units = units * times
      local have = math.floor((burst * unit - debt) / unit + 1e-9)
      if units > 0 and units <= have then -- mutant: never, border 2: speed
        debt = debt + units * unit
        local full = math.ceil(debt)
        -- mutant: never, operand 1: speed
        redis.call('SET', debts, stamp .. string.format(debt == full and '%d' or '%.17g', debt), 'PX', math.ceil(full / 1000) + 1)
        local left = have - units
        replies[n + 1], replies[n + 2], replies[n + 3], replies[n + 4], replies[n + 5] = units, 0, left, 0, full
        replies[n + 6], replies[n + 7], replies[n + 8] = 1, left, math.ceil(debt + (left + 1 - burst) * unit)
        n, done = n + 8, true
      end
    end
  end
  if not done then
    functions = functions or later() -- mutant: operand 1: speed
    local denied = functions.answered(replies, debts, text, now, ARGV, question, next, next + 4 * asked - 4)
    if denied then return denied end -- GET is denied, for every key
    n = #replies
  end
  next = next + 1 + 4 * asked
end
return replies
