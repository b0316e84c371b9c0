-- limit_refund: a caller gives back units that it took of a rate limiter and did not use.
-- include: limit
--
-- KEYS[1]    debts  string  the debt of each limit (include_limit)
-- ARGV[1]    count  count   the number of limits; rate, per (µs) and burst of each follow, with burst 0 for an aligned one (include_limit)
-- ARGV[at+1] units  count   the number of units to give back
-- ARGV[at+2] used   µs      when the caller would have used the units, by the server's clock
--
-- Returns 1 when the units came back, except those that time has given back already.
-- Returns 0: none came back now.
-- Returns -4: the key holds something else; nothing was done.
--
-- Time pays the oldest part of a debt first, and later uses rely on that. So the refund is the cost of the units, less the
-- time since their use. While callers who came later are in line, nothing comes back: their turns rely on the debt as it is.
-- The cost is noted as a gap, and comes back when all of them have left.
--
-- Not safe to repeat: units that come back twice would be admitted twice.
local debts, count = KEYS[1], tonumber(ARGV[1])
local at = 3 * count + 1
local units, used = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limits = rules(count, ARGV)
local ahead, others, gaps = recall(limits, redis.pcall('GET', debts), now)
if not ahead then return others end

-- credit takes a cost from the debt of a limit, less the time since its turn, and returns what it took.
local function credit(limit, cost, after)
  local back = math.min(limit.debt, math.max(0, cost - math.max(0, ahead - after)))
  limit.debt = limit.debt - back
  return back
end

-- last tells whether the turn after this time is that of the last in line.
local function last(after)
  return ahead > 0 and ahead - after < 1
end

-- shorten sets the turn of the last in line when that has left: the reservations before it wait no longer than this.
local function shorten()
  local latest = 0
  for _, limit in ipairs(limits) do
    if limit.aligned then -- the key no longer has the count of the window before
      latest = math.max(latest, limit.window * limit.per - now)
    else
      latest = math.max(latest, limit.debt - limit.room)
    end
  end
  ahead = math.min(ahead, latest)
end

local gap, back, rest = {used - now}, 0, 0
local alone = ahead == 0 or last(gap[1]) -- nobody in line came later
for i, limit in ipairs(limits) do
  local came, cost = 0, 0
  if not limit.aligned then
    cost = units * limit.unit
    if alone then came = credit(limit, cost, gap[1]) end
  elseif math.floor(used / limit.per) == limit.window then
    came = math.min(units, limit.used)
    cost = came
    limit.used = limit.used - came
  end
  back, rest = math.max(back, came), math.max(rest, cost - came)
  gap[i + 1] = cost - came
end

-- fill takes the cost of a gap from the debts.
local function fill(before)
  for i, limit in ipairs(limits) do
    if not limit.aligned then credit(limit, before[i + 1] or 0, before[1]) end
  end
end

if last(gap[1]) then
  shorten()
  while #gaps > 0 and last(gaps[#gaps][1]) do
    fill(table.remove(gaps))
    shorten()
  end
  if ahead == 0 then -- nobody is in line: those whose turn would be over by now need not have left in its order
    for i = #gaps, 1, -1 do fill(table.remove(gaps)) end
  end
elseif not alone and rest > 0 then
  local i = #gaps
  while i > 0 and gaps[i][1] > gap[1] do i = i - 1 end
  table.insert(gaps, i + 1, gap)
  if #gaps > 100 then table.remove(gaps, 1) end -- the first in line, as its turn comes before all others leave
elseif back == 0 then
  return 0
end
record(limits, debts, now, ahead, others, gaps)
return back > 0 and 1 or 0
