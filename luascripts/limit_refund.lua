-- limit_refund: a caller gives back units that it took of a rate limiter and did not use.
-- include: limit
--
-- KEYS[1]    debts  string  the debt of each limit (include_limit)
-- ARGV[1]    count  count   the number of limits; rate, per (µs) and burst of each follow, with burst 0 for an aligned one (include_limit)
-- ARGV[at+1] units  count   the number of units to give back
-- ARGV[at+2] used   µs      when the caller would have used the units, by the server's clock
--
-- Returns 1 when the units came back, except those that time has given back already.
-- Returns 0: no debt of these units is left.
-- Returns -4: the key holds something else; nothing was done.
--
-- Time pays the oldest part of a debt first. Later uses and reservations rely on the time that
-- has passed since the use of these units. So the refund is the cost of the units, less the
-- time between their use and the latest use.
--
-- Not safe to repeat: units that come back twice would be admitted twice.
local debts, count = KEYS[1], tonumber(ARGV[1])
local at = 3 * count + 1
local units, used = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limits = rules(count, ARGV)
local ahead, others = recall(limits, redis.pcall('GET', debts), now)
if not ahead then return others end

local since = math.max(0, now + ahead - used)
local back = 0
for _, limit in ipairs(limits) do
  if limit.aligned then
    if math.floor(used / limit.per) == limit.window then
      back = math.max(back, math.min(units, limit.used))
      limit.used = math.max(0, limit.used - units)
    end
  else
    local credit = math.min(limit.debt, math.max(0, units * limit.unit - since))
    back = math.max(back, credit)
    limit.debt = limit.debt - credit
  end
end
if back == 0 then return 0 end
if since < 1 and ahead > 0 then -- it was the last in line; the reservations before it wait no longer than this
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
record(limits, debts, now, ahead, others)
return 1
