-- include_limit_questions: answers the questions of limit_take that are not the usual one. It has no keys of its own.
-- include: limit, limit_refund

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

  -- need returns the time until a limit has these units.
  local function need(limit, units)
    if limit.aligned then
      local window = limit.window
      if limit.used + units > limit.rate then window = window + 1 end
      return window * limit.per - now
    end
    return limit.debt + units * limit.unit - limit.room
  end

  -- more returns the time until a limit has one unit more than now; 0 if it has all.
  local function more(limit)
    local have = left(limit)
    if have >= limit.most then return 0 end
    return need(limit, have + 1)
  end

  -- spare returns the units that all limits have now.
  local function spare()
    if ahead > 0 then return 0 end -- a reservation comes before
    local least = math.huge
    for _, limit in ipairs(limits) do least = math.min(least, left(limit)) end
    return least
  end

  -- scarcest returns the number of the limit that has the least units now: of several, the one that gets its next unit last.
  local function scarcest()
    local least, which, longest
    for i, limit in ipairs(limits) do
      local n, after = left(limit), more(limit)
      if not least or n < least or n == least and after > longest then least, which, longest = n, i, after end
    end
    return which
  end

  -- earliest returns the time until all limits have these units, and the number of the limit that has them last; nil if a
  -- reservation comes later than that.
  local function earliest(units)
    local after, which = ahead, nil
    for i, limit in ipairs(limits) do
      local time = need(limit, units)
      if time > after then after, which = time, i end -- mutant: border: of equal times either limit is right
    end
    return after, which
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
    ahead = after
  end

  -- forgive resets the key: nothing is owed any more, by any caller.
  local function forgive()
    for _, limit in ipairs(limits) do
      limit.debt, limit.used = 0, 0
      limit.window = math.floor(now / limit.per)
    end
    ahead, others, gaps = 0, {}, {}
  end

  local most, smallest = math.huge, nil -- the units that a caller can take at once, and which limit says so
  for i, limit in ipairs(limits) do
    if limit.most < most then most, smallest = limit.most, i end
  end

  local changed = false
  for at = first, last, 4 do
    local units, times, least, wait = question(at)
    local taken, after, retry, remaining, which = 0, 0, 0, 0, nil
    if units < 0 or times == 0 then
      local did = text ~= false
      if units < 0 then
        ahead, did = refund(limits, gaps, ahead, now, -units, least)
      else
        forgive()
      end
      changed = changed or did
      remaining = spare()
    else
      local have = spare()
      taken = math.min(units, have)
      if times > 1 then
        taken = units * math.min(times, math.floor(have / units))
      elseif taken < least then -- mutant: border: it is taken below
        taken = 0
      end
      if taken < least * times then
        retry, which = -1, smallest
        if least <= most then
          if taken > 0 then charge(taken, 0) end
          retry, which = earliest(least)
          if taken > 0 then
            changed = true
          elseif retry <= wait then
            taken, after, retry = least, retry, 0
            charge(taken, after)
            changed = true
          end
        end
      elseif taken > 0 then
        charge(taken, 0)
        changed = true
      end
      if after == 0 then remaining = have - taken end
    end
    which = which or scarcest()
    local has, full = left(limits[which]), 0
    if ahead > 0 then has = 0 end
    for _, limit in ipairs(limits) do full = math.max(full, reset(limit, now)) end
    local n = #replies
    replies[n + 1], replies[n + 2], replies[n + 3] = taken, math.ceil(after), remaining
    replies[n + 4], replies[n + 5] = math.ceil(retry), math.ceil(full)
    replies[n + 6], replies[n + 7], replies[n + 8] = which, has, math.ceil(math.max(ahead, more(limits[which])))
  end
  if changed then record(limits, debts, now, ahead, others, gaps) end
end
