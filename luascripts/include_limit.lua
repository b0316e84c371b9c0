-- include_limit: reads and writes the state of a rate limiter for one key. It has no keys of its own.
--
-- The state is the text "gcra <last> <reserved> <state> <state> ... <gap> ...", with one <state> for each limit. All
-- times are in µs:
--
--   last      the server's time when the script wrote the text
--   reserved  the time from `last` until the latest reservation is due; 0 without a reservation. A reservation is for a
--             caller that waits: it has taken permits that become available only then
--   state     for a limit with a burst, its usage: the time from `last` until the bucket is full again. For an aligned
--             limit "<end>:<used>": the end of its window, and the permits taken in the window. If that window has not begun,
--             ":<end>:<used>" follows, of the window that counted before the reservations for this one
--   gap       a reservation that was refunded while later ones were waiting: "~<after>~<cost>~<cost>...", with the time
--             from `last` until it would have been due, and for each limit the usage that is still to be refunded
--
-- Usage is a duration, not a time, so a clock that moves backward does not lengthen it: the next call writes the text again,
-- even if it takes nothing, so that usage decreases by the new time. There may be more states than the
-- caller has limits, from callers with more limits. They are kept.

-- limit_args returns rate, per and burst of the i-th limit. The limits begin with the second argument. An aligned limit has
-- burst 0.
local function limit_args(args, i)
  return tonumber(args[3 * i - 1]), tonumber(args[3 * i]), tonumber(args[3 * i + 1])
end

-- read_limits reads n limits from the arguments.
local function read_limits(n, args)
  local limits = {}
  for i = 1, n do
    local rate, per, burst = limit_args(args, i)
    local cost, max_permits = per / rate, burst
    if burst == 0 then max_permits = rate end
    -- Lua creates a table twice as fast if it has all its fields from the start.
    limits[i] = {rate = rate, per = per, cost = cost, aligned = burst == 0, capacity = burst * cost, max_permits = max_permits, usage = 0, window = -1, used = 0, earlier = false}
  end
  return limits
end

-- set_window sets the window of an aligned limit and the permits taken in it. If the window has passed, the one of now counts.
local function set_window(limit, window, used, now)
  local current = math.floor(now / limit.per)
  if window < current then window, used = current, 0 end
  limit.window, limit.used = window, used
end

-- read_state sets the state of each limit from the text of the key, as of now. It returns `reserved`, the states of further
-- limits, the gaps in the order in which they would have been due, and whether the clock has moved backward since `last`. If
-- the key has the wrong type, or a command failed, it returns nil and the reply of the script.
local function read_state(limits, text, now)
  local reserved, other_states, gaps, i, set_back = 0, {}, {}, 0, false
  if type(text) == 'table' then
    if string.find(text.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, text
  end
  if text then
    local last, stored_reserved, states, gap_texts = string.match(text, '^gcra (%d+) (%S+)([^~]*)(.*)$')
    if not tonumber(stored_reserved) then return nil, -4 end
    local elapsed = math.max(0, now - last)
    set_back = now < tonumber(last) -- mutant: border: speed
    reserved = math.max(0, stored_reserved - elapsed)
    for gap in string.gmatch(gap_texts, '%S+') do
      local gap_numbers = {}
      for number in string.gmatch(gap, '[^~]+') do gap_numbers[#gap_numbers + 1] = tonumber(number) end
      if not gap_numbers[2] then return nil, -4 end
      gap_numbers[1] = gap_numbers[1] - elapsed
      -- mutant: border 2: such a gap has nothing to refund
      if reserved > 0 and gap_numbers[1] + math.max(unpack(gap_numbers, 2)) > 0 then gaps[#gaps + 1] = gap_numbers end
    end
    for state in string.gmatch(states, '%S+') do
      i = i + 1
      local usage, limit, window_end, used, earlier = tonumber(state), limits[i], nil, nil, nil
      if usage then
        usage = math.max(0, usage - elapsed)
      else
        window_end, used, earlier = string.match(state, '^(%d+):(%d+)(:?%d*:?%d*)$')
        if not window_end then return nil, -4 end
      end
      if not limit then
        other_states[#other_states + 1] = usage or {tonumber(window_end), used .. earlier}
      elseif window_end then
        -- No window is later than that of the latest reservation, unless the clock moved backward.
        limit.window = math.min(math.ceil(window_end / limit.per) - 1, math.floor((now + reserved) / limit.per))
        limit.used = tonumber(used)
        local earlier_end, earlier_used = string.match(earlier, '^:(%d+):(%d+)$')
        if earlier_end then limit.earlier = {window = math.ceil(earlier_end / limit.per) - 1, used = tonumber(earlier_used)} end
      else
        limit.usage = usage
      end
    end
  end
  for _, limit in ipairs(limits) do
    if limit.aligned then -- mutant: always: speed
      set_window(limit, limit.window, limit.used, now)
    end
  end
  return reserved, other_states, gaps, set_back
end

-- write_state writes the state. The key expires when no usage is left.
local function write_state(limits, key, now, reserved, other_states, gaps)
  local text, longest = {string.format('gcra %.0f %.17g', now, reserved)}, reserved
  for _, limit in ipairs(limits) do
    if limit.aligned then
      local window_end = (limit.window + 1) * limit.per
      text[#text + 1] = string.format('%.0f:%.0f', window_end, limit.used)
      if limit.earlier and limit.window * limit.per > now then
        text[#text] = text[#text] .. string.format(':%.0f:%.0f', (limit.earlier.window + 1) * limit.per, limit.earlier.used)
      end
      if limit.used > 0 then longest = math.max(longest, window_end - now) end
    else
      text[#text + 1] = string.format('%.17g', limit.usage)
      longest = math.max(longest, limit.usage)
    end
  end
  for _, other in ipairs(other_states) do
    if type(other) == 'table' then
      text[#text + 1] = string.format('%.0f:%s', other[1], other[2])
      longest = math.max(longest, other[1] - now)
    else
      text[#text + 1] = string.format('%.17g', other)
      longest = math.max(longest, other)
    end
  end
  for _, gap in ipairs(gaps) do
    local words = {''}
    for i, number in ipairs(gap) do words[i + 1] = string.format('%.17g', number) end
    text[#text + 1] = table.concat(words, '~')
  end
  redis.call('SET', key, table.concat(text, ' '), 'PX', string.format('%.0f', math.ceil(longest / 1000) + 1))
end

-- time_to_reset returns the time until a limit has no usage left.
local function time_to_reset(limit, now)
  if not limit.aligned then return limit.usage end
  if limit.used == 0 then return 0 end
  return (limit.window + 1) * limit.per - now
end
