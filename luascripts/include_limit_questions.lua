-- include_limit_questions: answers the questions of limit_take that are not the usual one. It has no keys of its own.
-- include: limit

-- answered answers the questions of limit_take about a key, which begin behind `first` and every fourth argument up
-- to `last`. text is what GET says. It adds to replies what the script returns for a key, or returns the error of GET.
local function answered(replies, debts, text, now, args, question, first, last)
  local limits = rules(tonumber(args[1]), args)
  local ahead, others, gaps = recall(limits, text, now)
  if not ahead then
    if others ~= -4 then return others end
    replies[#replies + 1] = -4
    return
  end

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

  local changed = false
  for at = first, last, 4 do
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
end
