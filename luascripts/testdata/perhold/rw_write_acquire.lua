local function stamped(time)
  time.text = time.text or time[1] .. string.sub('00000' .. time[2], -6)
  return time.text
end

local function latest_in(register)
  local text = redis.call('GET', register)
  if text and (not string.find(text, '^%d+$') or #text > 19) then error('the register of fencing tokens holds something else than a token') end
  return text
end

local function grown(register, time, last, spare)
  if not register and not last then return stamped(time) end
  local token = math.max(time[1] * 1000000 + time[2], (last or 0) + 1)
  if register then
    local latest = tonumber(latest_in(register) or nil)
    if latest and latest >= 9007199254740991 - (spare or 0) then error('the register of fencing tokens is at ' .. string.format('%.0f', latest) .. ', which is too large to go on from') end
    if latest and latest >= token then token = latest + 1 end
    redis.call('SET', register, string.format('%.0f', token + (spare or 0)))
  end
  return string.format('%.0f', token)
end

local function is_owner(field)
  return string.find(field, '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:%-?%d+$') ~= nil
end

local function timeout(beside, owner, n)
  return beside .. ':' .. owner .. ':rwlock_timeout:' .. n
end

local function lives(lock, beside, owner, count)
  local most = 0
  for n = count, math.max(count - 255, 1), -1 do
    local left = redis.call('PTTL', timeout(beside, owner, n))
    if left == -1 then left = math.max(redis.call('PTTL', lock), 1000) end
    most = math.max(most, left)
  end
  return most
end

local function unlease(beside, owner, from, to)
  for n = to, math.max(from, to - 9999), -1 do redis.pcall('DEL', timeout(beside, owner, n)) end
end

local function readers(lock, beside, part, f)
  for i = #part - 1, 1, -2 do
    local owner, count = part[i], tonumber(part[i + 1])
    if owner ~= 'mode' and count and string.sub(owner, -6) ~= ':write' then
      if f(owner, count, lives(lock, beside, owner, count)) then return true end
    end
  end
  return false
end

local function survey(lock, beside, except, enough)
  local most, seen, dead, cursor, stopped = 0, 0, {}, '0', false
  repeat
    local page = redis.call('HSCAN', lock, cursor, 'COUNT', 20)
    cursor = page[1]
    stopped = readers(lock, beside, page[2], function(owner, _, left)
      if seen == 50 then return true end
      if owner ~= except then
        seen = seen + 1
        most = math.max(most, left)
        if left == 0 then dead[#dead + 1] = owner end
      end
      return most >= enough
    end)
  until stopped or cursor == '0'
  return most, not stopped, dead
end

local function bury(lock, dead)
  if #dead > 0 then redis.call('HDEL', lock, unpack(dead)) end
  return redis.call('HLEN', lock) == 1
end

local function prune(lock, beside)
  if redis.call('HLEN', lock) <= 16 then return end
  local dead, seen = {}, 0
  readers(lock, beside, redis.call('HSCAN', lock, redis.call('TIME')[2], 'COUNT', 10)[2], function(owner, _, left)
    if left == 0 then dead[#dead + 1] = owner end
    seen = seen + 1
    return seen == 50
  end)
  bury(lock, dead)
end

local function side(lock)
  local mode = redis.pcall('HGET', lock, 'mode')
  if type(mode) == 'table' then
    if string.find(mode.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, mode
  end
  if not mode and redis.call('EXISTS', lock) == 0 then return false end
  if mode ~= 'read' and mode ~= 'write' or redis.call('HLEN', lock) < 2 then return nil, -4 end
  local some = redis.call('HSCAN', lock, 0, 'COUNT', 8)[2]
  for i = 1, math.min(#some, 32), 2 do
    local field = some[i]
    if field ~= 'mode' and not (is_owner((string.gsub(field, ':write$', ''))) and tonumber(some[i + 1])) then return nil, -4 end
  end
  return mode
end

local function one_passed() return 1 end

local function turned(turn)
  local text = redis.pcall('GET', turn)
  local left = type(text) == 'string' and redis.call('PTTL', turn) or 0
  if left <= 0 then return '', 0, 0, 0 end
  local owner, since, start = string.match(text, '^(.*) (%d+) (%d+)$')
  return owner or '', tonumber(since or 0), tonumber(start or 0), left
end

local function turns(turn, owner, since, start, left)
  redis.pcall('SET', turn, string.format('%s %.0f %.0f', owner, since, start), 'PX', left)
end

local function wished(wish)
  local text = redis.pcall('GET', wish)
  if type(text) ~= 'string' or redis.call('PTTL', wish) <= 0 then return nil end
  local owner, since = string.match(text, '^(.*) (%d+)$')
  return owner, tonumber(since)
end
local lock, wish, turn, never, register = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local waited, stay, beside = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local mode, answer = side(lock)
if mode == nil then return answer end
if mode == 'write' and redis.call('HEXISTS', lock, owner .. ':write') == 1 then
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
  redis.call('HSET', lock, owner .. ':write', want)
  if want > 1 then return '0' end
  return grown(register, time, nil, 1)
end
if want > 1 then
  redis.call('HDEL', lock, '')
  return -2
end

local left = mode == 'write' and redis.call('PTTL', lock) or 0
if mode == 'read' then
  local most, all, dead = survey(lock, beside, nil, math.huge)
  all = bury(lock, dead) or all
  if most == 0 and not all then return -3 end
  left = most
  if left == 0 then
    redis.call('DEL', lock)
    mode = false
  end
end
local first, since = wished(wish)
local reader, came, start, rest = turned(turn)
if not mode and reader ~= '' and start == one_passed() then
  start, rest = now, 100
  turns(turn, reader, came, start, rest)
end
if not mode and reader ~= '' and came <= start then
  left = rest
elseif not mode then
  local token = grown(register, time, nil, 1)
  redis.call('HSET', lock, 'mode', 'write', owner .. ':write', 1)
  local expiry = redis.pcall('PEXPIRE', lock, lease)
  if type(expiry) == 'table' and expiry.err then
    redis.call('DEL', lock)
    return expiry
  end
  if first == owner then redis.pcall('DEL', wish) end
  if reader ~= '' then turns(turn, reader, came, one_passed(), rest) end
  return token
end
if stay > 0 then
  local arrived = now - waited
  if first == owner then arrived = math.min(arrived, since) end
  if not first or arrived <= since then
    redis.pcall('SET', wish, owner .. ' ' .. string.format('%.0f', arrived), 'PX', stay)
  end
end
return left
