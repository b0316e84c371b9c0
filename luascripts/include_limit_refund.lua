-- include_limit_refund: refunds permits that a caller took from a rate limiter and did not use. It has no keys of its own.
-- include: limit
--
-- Usage decreases with time, the oldest part first, and later calls count on that. A refund is therefore the cost of the permits,
-- less the time since they were taken. While callers with later reservations wait, nothing is refunded, because their
-- reservations depend on the usage as it is. The cost is then stored as a gap, and refunded when all of them have left.

-- refund refunds permits that a caller would have used at the server's time `used`, in µs. It returns the new `reserved`, and
-- whether anything was refunded or stored. It changes limits and gaps.
local function refund(limits, gaps, reserved, now, permits, used)
  -- reduce subtracts an amount from the usage of a limit, less the time since its reservation was due, and returns the difference.
  local function reduce(limit, amount, due)
    local back = math.min(limit.usage, math.max(0, amount - math.max(0, reserved - due)))
    limit.usage = limit.usage - back
    return back
  end

  -- is_last_due reports whether the reservation that is due after `due` µs is the latest one.
  local function is_last_due(due)
    return reserved > 0 and reserved - due < 1
  end

  -- shorten_reserved lowers `reserved` after the latest reservation was refunded, to a time by which all earlier reservations are due.
  local function shorten_reserved()
    local latest_due = 0
    for _, limit in ipairs(limits) do
      if limit.aligned then
        if limit.used == 0 and limit.earlier then -- the callers with reservations for this window have all left
          set_window(limit, limit.earlier.window, limit.earlier.used, now)
          limit.earlier = false -- the count of a window before that is not stored
        end
        latest_due = math.max(latest_due, limit.window * limit.per - now)
      else
        latest_due = math.max(latest_due, limit.usage - limit.capacity)
      end
    end
    reserved = math.min(reserved, latest_due)
  end

  -- refund_gap refunds a gap.
  local function refund_gap(gap)
    for i, limit in ipairs(limits) do
      reduce(limit, gap[i + 1] or 0, gap[1])
    end
  end

  local gap, most_refunded, most_deferred = {used - now}, 0, 0
  local none_later = reserved == 0 or is_last_due(gap[1]) -- no later reservation is waiting
  for i, limit in ipairs(limits) do
    local refunded, amount = 0, 0
    if not limit.aligned then
      amount = permits * limit.cost
      if none_later then refunded = reduce(limit, amount, gap[1]) end
    else
      local counter, window = limit, math.floor(used / limit.per)
      if limit.window ~= window and limit.earlier then counter = limit.earlier end
      if counter.window == window then
        refunded = math.min(permits, counter.used)
        amount = refunded
        counter.used = counter.used - refunded
      end
    end
    most_refunded, most_deferred = math.max(most_refunded, refunded), math.max(most_deferred, amount - refunded)
    gap[i + 1] = amount - refunded
  end

  if is_last_due(gap[1]) then
    shorten_reserved()
    while #gaps > 0 and is_last_due(gaps[#gaps][1]) do
      refund_gap(table.remove(gaps))
      shorten_reserved()
    end
    if reserved == 0 then -- no reservation is waiting: refund all gaps; those that are overdue may have left in any order
      for i = #gaps, 1, -1 do refund_gap(table.remove(gaps)) end
    end
  elseif not none_later and most_deferred > 0 then
    local i = #gaps
    -- mutant: border 2: gaps of the same time are refunded one right after the other
    while i > 0 and gaps[i][1] > gap[1] do i = i - 1 end
    table.insert(gaps, i + 1, gap)
    if #gaps > 100 then table.remove(gaps, 1) end -- the earliest, which is due before all others can have left
  elseif most_refunded == 0 then
    return reserved, false
  end
  return reserved, true
end
