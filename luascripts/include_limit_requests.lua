-- include_limit_requests: serves the requests of limit_take that its fast path does not. It has no keys of its own.
-- include: limit, limit_refund

-- serve_requests serves the requests of limit_take for one key. They begin after args[first], and each has four arguments, up to
-- args[last + 4]. text is the reply to GET. serve_requests appends to replies what the script returns for the key. If GET failed,
-- it returns that error.
local function serve_requests(replies, key, text, now, args, request, first, last)
  local limits = read_limits(tonumber(args[1]), args)
  local reserved, other_states, gaps, changed = read_state(limits, text, now)
  if not reserved then
    if other_states ~= -4 then return other_states end
    replies[#replies + 1] = -4
    return
  end

  -- permits_left returns how many permits a limit has now.
  local function permits_left(limit)
    if limit.aligned then
      if limit.window * limit.per > now then return 0 end
      return math.max(0, limit.rate - limit.used)
    end
    -- Rounding errors, which grow with the burst, must not hide a permit that is there by time_until.
    return math.max(0, math.floor((limit.capacity - limit.usage) / limit.cost + 1e-9 + limit.max_permits * 8e-16))
  end

  -- time_until returns the time until a limit has this many permits.
  local function time_until(limit, permits)
    if limit.aligned then
      local window = limit.window
      if limit.used + permits > limit.rate then window = window + 1 end
      return window * limit.per - now
    end
    return limit.usage + permits * limit.cost - limit.capacity
  end

  -- time_until_more returns the time until a limit has one permit more than now; 0 if it has all.
  local function time_until_more(limit)
    local have = permits_left(limit)
    if have >= limit.max_permits then return 0 end
    return time_until(limit, have + 1)
  end

  -- available returns how many permits all limits have now.
  local function available()
    if reserved > 0 then return 0 end -- callers with reservations come first
    local least = math.huge
    for _, limit in ipairs(limits) do least = math.min(least, permits_left(limit)) end
    return least
  end

  -- scarcest returns the index of the limit with the fewest permits now. Of several, it is the one that gets its next permit last.
  local function scarcest()
    local least, which, longest
    for i, limit in ipairs(limits) do
      local n, delay = permits_left(limit), time_until_more(limit)
      if not least or n < least or n == least and delay > longest then least, which, longest = n, i, delay end
    end
    return which
  end

  -- earliest returns the time until all limits have this many permits, and the index of the limit that has them last; nil instead of
  -- the index if a reservation is due later than that.
  local function earliest(permits)
    local delay, which = reserved, nil
    for i, limit in ipairs(limits) do
      local time = time_until(limit, permits)
      if time > delay then delay, which = time, i end -- mutant: border: of equal times either limit is right
    end
    return delay, which
  end

  -- take takes permits for use after a delay.
  local function take(permits, delay)
    for _, limit in ipairs(limits) do
      if limit.aligned then
        local window = math.floor((now + delay) / limit.per)
        if limit.window < window then
          limit.earlier = {window = limit.window, used = limit.used}
          limit.window, limit.used = window, 0
        end
        limit.used = limit.used + permits
      else
        limit.usage = math.max(limit.usage, delay) + permits * limit.cost
      end
    end
    reserved = delay
  end

  -- reset_all resets the key: no caller has used any permits.
  local function reset_all()
    for _, limit in ipairs(limits) do
      limit.usage, limit.used = 0, 0
      limit.window = math.floor(now / limit.per)
    end
    reserved, other_states, gaps = 0, {}, {}
  end

  local max_permits, smallest_limit = math.huge, nil -- the most permits that a caller can ever take at once, and the limit that sets this maximum
  for i, limit in ipairs(limits) do
    if limit.max_permits < max_permits then max_permits, smallest_limit = limit.max_permits, i end
  end

  for at = first, last, 4 do
    local permits, times, least, wait = request(at)
    local taken, delay, retry, remaining, which = 0, 0, 0, 0, nil
    if permits < 0 or times == 0 then
      local did = text ~= false
      if permits < 0 then
        reserved, did = refund(limits, gaps, reserved, now, -permits, least)
      else
        reset_all()
      end
      changed = changed or did
      remaining = available()
    else
      local have = available()
      taken = math.min(permits, have)
      if times > 1 then
        taken = permits * math.min(times, math.floor(have / permits))
      elseif taken < least then -- mutant: border: the permits are taken below
        taken = 0
      end
      if taken < least * times then
        retry, which = -1, smallest_limit
        if least <= max_permits then
          if taken > 0 then take(taken, 0) end
          retry, which = earliest(least)
          if taken > 0 then
            changed = true
          elseif retry <= wait then
            taken, delay, retry = least, retry, 0
            take(taken, delay)
            changed = true
          end
        end
      elseif taken > 0 then
        take(taken, 0)
        changed = true
      end
      if delay == 0 then remaining = have - taken end
    end
    which = which or scarcest()
    local limit_left, reset_time = permits_left(limits[which]), 0
    if reserved > 0 then limit_left = 0 end
    for _, limit in ipairs(limits) do reset_time = math.max(reset_time, time_to_reset(limit, now)) end
    local n = #replies
    replies[n + 1], replies[n + 2], replies[n + 3] = taken, math.ceil(delay), remaining
    replies[n + 4], replies[n + 5] = math.ceil(retry), math.ceil(reset_time)
    replies[n + 6], replies[n + 7], replies[n + 8] = which, limit_left, math.ceil(math.max(reserved, time_until_more(limits[which])))
  end
  if changed then write_state(limits, key, now, reserved, other_states, gaps) end
end
