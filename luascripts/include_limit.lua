-- include_limit: reads and writes the state of a rate limiter for one key. It has no keys of its own.
--
-- "gcra <last> <ahead> <state> <state> ... <gap> ...", one state for each limit, times in µs:
--
--   last   the server's time when the script wrote the state
--   ahead  the time from `last` to the turn of the latest reservation; 0 without one
--   state  of a limit with a burst, the debt: the time from `last` until the bucket is
--          full again. Of an aligned limit "<end>:<used>": the end of its window, and
--          the units taken in the window
--
--   gap    of a reservation that was given back before others: "~<after>~<cost>~<cost>...", the
--          time from `last` to its turn, and for each limit the debt that it still makes
--
-- A debt is relative, so a clock that goes back does not lengthen it. States beyond
-- those of the caller's limits belong to callers with more limits, and stay.

-- numbers returns rate, per and burst of the i-th limit. The limits begin with the second
-- argument. An aligned limit has burst 0.
local function numbers(args, i)
  return tonumber(args[3 * i - 1]), tonumber(args[3 * i]), tonumber(args[3 * i + 1])
end

-- rules reads n limits from the arguments.
local function rules(n, args)
  local limits = {}
  for i = 1, n do
    local rate, per, burst = numbers(args, i)
    local unit, most = per / rate, burst
    if burst == 0 then most = rate end
    -- Lua makes a table twice as fast if it has all its fields from the beginning.
    limits[i] = {rate = rate, per = per, unit = unit, aligned = burst == 0, room = burst * unit, most = most, debt = 0, window = -1, used = 0}
  end
  return limits
end

-- recall sets the state of each limit from the text of the key, as of now. It gives `ahead`, the
-- states that belong to callers with more limits, and the gaps in the order of their turns; or nil and the answer
-- of the script when the key holds something else.
local function recall(limits, text, now)
  local ahead, others, gaps, i = 0, {}, {}, 0
  if type(text) == 'table' then
    if string.find(text.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, text
  end
  if text then
    local last, later, states, lost = string.match(text, '^gcra (%d+) (%S+)([^~]*)(.*)$')
    if not tonumber(later) then return nil, -4 end
    local elapsed = math.max(0, now - last)
    ahead = math.max(0, later - elapsed)
    for gap in string.gmatch(lost, '%S+') do
      local numbers = {}
      for number in string.gmatch(gap, '[^~]+') do numbers[#numbers + 1] = tonumber(number) end
      if not numbers[2] then return nil, -4 end
      numbers[1] = numbers[1] - elapsed
      -- mutant: border 2: nothing is left of such a gap
      if ahead > 0 and numbers[1] + math.max(unpack(numbers, 2)) > 0 then gaps[#gaps + 1] = numbers end
    end
    for state in string.gmatch(states, '%S+') do
      i = i + 1
      local debt, limit, stop, used = tonumber(state), limits[i], nil, nil
      if debt then
        debt = math.max(0, debt - elapsed)
      else
        stop, used = string.match(state, '^(%d+):(%d+)$')
        if not stop then return nil, -4 end
      end
      if not limit then
        others[#others + 1] = debt or {tonumber(stop), used}
      elseif stop then
        -- No window is later than that of the latest reservation, unless the clock went back.
        limit.window = math.min(math.ceil(stop / limit.per) - 1, math.floor((now + ahead) / limit.per))
        limit.used = tonumber(used)
      else
        limit.debt = debt
      end
    end
  end
  for _, limit in ipairs(limits) do
    if limit.aligned then -- mutant: always: speed
      local window = math.floor(now / limit.per)
      if limit.window < window then
        limit.window, limit.used = window, 0
      end
    end
  end
  return ahead, others, gaps
end

-- record writes the state, which expires when nothing is owed.
local function record(limits, debts, now, ahead, others, gaps)
  local text, longest = {string.format('gcra %.0f %.17g', now, ahead)}, ahead
  for _, limit in ipairs(limits) do
    if limit.aligned then
      local stop = (limit.window + 1) * limit.per
      text[#text + 1] = string.format('%.0f:%.0f', stop, limit.used)
      if limit.used > 0 then longest = math.max(longest, stop - now) end
    else
      text[#text + 1] = string.format('%.17g', limit.debt)
      longest = math.max(longest, limit.debt)
    end
  end
  for _, other in ipairs(others) do
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
  redis.call('SET', debts, table.concat(text, ' '), 'PX', string.format('%.0f', math.ceil(longest / 1000) + 1))
end

-- reset returns the time until nothing of a limit is owed.
local function reset(limit, now)
  if not limit.aligned then return limit.debt end
  if limit.used == 0 then return 0 end
  return (limit.window + 1) * limit.per - now
end
