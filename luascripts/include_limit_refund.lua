-- include_limit_refund: refunds units that a caller took of a rate limiter and did not use. It has no keys of its own.
--
-- Time pays the oldest part of a debt first, and later uses rely on that. So the refund is the cost of the units, less the
-- time since their use. While callers who came later are in line, nothing comes back: their turns rely on the debt as it is.
-- The cost is noted as a gap, and comes back when all of them have left.

-- refund refunds units that a caller would have used at the server's time `used`, in µs. It returns `ahead`, and whether
-- anything came back or was noted. It changes limits and gaps.
local function refund(limits, gaps, ahead, now, units, used)
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

  -- fill takes the cost of a gap from the debts.
  local function fill(before)
    for i, limit in ipairs(limits) do
      credit(limit, before[i + 1] or 0, before[1])
    end
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
    return ahead, false
  end
  return ahead, true
end
