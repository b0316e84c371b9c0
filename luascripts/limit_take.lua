-- limit_take: callers take units of a rate limiter, or ask for its state, in the order of the arguments.
-- include: limit
--
-- KEYS[1]    debts  string  the debt of each limit (include_limit)
-- ARGV[1]    count  count   the number of limits; rate, per (µs) and burst of each follow, with burst 0 for an aligned one (include_limit)
-- ARGV[at+1] units  count   the units that a caller wants; 0 only asks. Each question repeats these four arguments
-- ARGV[at+2] times  count   the number of callers that want these units, one after the other; more than 1 only if they take all or none and do not wait
-- ARGV[at+3] least  count   the least units that a caller takes; the same as `units` to take all or none
-- ARGV[at+4] wait   µs      the longest that a caller would wait for its turn
--
-- Returns a list: the server's time in µs, and for each question: the number of units
-- taken; the time that the caller must wait before it uses them; the units that are
-- left; the time until the least units are there, 0 if they were taken and -1 if
-- they never are; the time until nothing is owed; and the number of the limit that has the
-- least left, from 1 on.
-- Returns -4: the key holds something else; nothing was done.
--
-- A caller takes units of all limits or of none. Of several callers that want the same number, the
-- script serves the first ones, until the units run out.
--
-- Not safe to repeat: a second copy takes again. Time gives back the units that were taken
-- twice, and the limit is too strict until then.
local debts, count = KEYS[1], tonumber(ARGV[1])

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- question returns units, times, least and wait of a question.
local function question(at)
  local units, times, least, wait = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  return tonumber(units), tonumber(times), tonumber(least), tonumber(wait)
end

local text = redis.pcall('GET', debts)
if #ARGV == 8 and type(text) ~= 'table' then
  -- The usual case takes fewer steps: one limit, one question, no reservation ahead, and the units are there.
  local last, debt = '0', '0'
  if text then last, debt = string.match(text, '^gcra (%d+) 0 (%S+)$') end
  debt = tonumber(debt or nil)
  local rate, per, burst = numbers(ARGV, 1)
  if debt and burst > 0 then
    local units, times = question(4)
    local unit = per / rate
    debt = math.max(0, debt - math.max(0, now - last))
    units = units * times
    local have = math.floor((burst * unit - debt) / unit + 1e-9)
    if units > 0 and units <= have then
      debt = debt + units * unit
      local full = math.ceil(debt)
      redis.call('SET', debts, string.format('gcra %.0f 0 %.17g', now, debt), 'PX', math.ceil(full / 1000) + 1)
      return {now, units, 0, have - units, 0, full, 1}
    end
  end
end

local limits = rules(count, ARGV)
local ahead, others, gaps = recall(limits, text, now)
if not ahead then return others end

-- left returns the units that a limit has now.
local function left(limit)
  if limit.aligned then
    if limit.window * limit.per > now then return 0 end
    return math.max(0, limit.rate - limit.used)
  end
  return math.max(0, math.floor((limit.room - limit.debt) / limit.unit + 1e-9))
end

-- scarcest returns the units that all limits have now, and the number of the limit that has the least.
local function scarcest()
  local least, which
  for i, limit in ipairs(limits) do
    local n = left(limit)
    if not least or n < least then least, which = n, i end
  end
  if ahead > 0 then least = 0 end -- a reservation comes before
  return least, which
end

-- earliest returns the time until all limits have these units. An aligned limit can move the time
-- to the beginning of a window, so the loop checks the other limits again.
local function earliest(units)
  local after, moved = ahead, true
  while moved do
    moved = false
    for _, limit in ipairs(limits) do
      local need = limit.debt + units * limit.unit - limit.room
      if limit.aligned then
        local window = math.max(limit.window, math.floor((now + after) / limit.per))
        if window == limit.window and limit.used + units > limit.rate then window = window + 1 end
        need = window * limit.per - now
      end
      if need > after then
        after, moved = need, true
      end
    end
  end
  return after
end

-- charge takes units that the caller uses after a time.
local function charge(units, after)
  for _, limit in ipairs(limits) do
    if limit.aligned then
      local window = math.floor((now + after) / limit.per)
      if limit.window < window then
        limit.window, limit.used = window, 0
      end
      limit.used = limit.used + units
    else
      limit.debt = math.max(limit.debt, after) + units * limit.unit
    end
  end
  ahead = math.max(ahead, after)
end

local most = math.huge
for _, limit in ipairs(limits) do most = math.min(most, limit.most) end

local replies, changed = {now}, false
for at = 3 * count + 1, #ARGV - 4, 4 do
  local units, times, least, wait = question(at)
  local have, which = scarcest()
  local taken, after, retry = math.min(units, have), 0, 0
  if times > 1 then
    taken = units * math.min(times, math.floor(have / units))
  elseif taken < least then
    taken = 0
  end
  if taken < least * times then
    retry = -1
    if least <= most then
      if taken > 0 then charge(taken, 0) end
      retry = earliest(least)
      if taken > 0 then
        changed = true
      elseif retry <= wait and times == 1 then
        taken, after, retry = least, retry, 0
        charge(taken, after)
        changed = true
      end
    end
  elseif taken > 0 then
    charge(taken, 0)
    changed = true
  end
  local remaining = have - taken
  if after > 0 then remaining = 0 end
  local full = 0
  for _, limit in ipairs(limits) do full = math.max(full, reset(limit, now)) end
  local n = #replies
  replies[n + 1], replies[n + 2], replies[n + 3] = taken, math.ceil(after), remaining
  replies[n + 4], replies[n + 5], replies[n + 6] = math.ceil(retry), math.ceil(full), which
end
if changed then record(limits, debts, now, ahead, others, gaps) end
return replies
